-- Records that differ in nothing but their ids have the same shape, as those that were submitted together. A
-- call changes the first of them by the rules and traces what that wrote; it writes the same for those behind
-- it without deciding again. Rows begin with the ids, so that all that is behind them is compared as one string.
--
-- A change has the row without its ids, and that of the attempt that ended; sorted sets and scores in turn,
-- false for a set that was left; the buckets of the lane; the group of the log its event stands in, with lease epoch
-- and attempt index; and which topics of the record were notified.

-- The ids of a record and of an attempt; their places are the first.
local IDS, ATTEMPT_IDS = @op_id, @a.lease_id
local ARRAY16_HEAD, FIXARRAY_HEAD = 3, 1
local ARRAY16 = 0xdc

-- What a row is behind its ids, and these.
function ff.divided(row)
  local at, attempt_id, lease_id, op_id = unpack_from(row, IDS, ARRAY16_HEAD)
  return sub(row, at + 1), attempt_id, lease_id, op_id
end

-- The head of a packed array and what it is behind its first elements.
local function cut(row, elements)
  local size = byte(row) == ARRAY16 and ARRAY16_HEAD or FIXARRAY_HEAD
  local at = unpack_from(row, elements, size)
  return sub(row, 1, size), sub(row, at + 1)
end

-- Of the changes a call knows, by the index tag of the record and what its row was.
function ff.known_change(known, index_tag, rest)
  local changes = known[index_tag]
  return changes and changes[rest]
end

function ff.begin_trace(c)
  c.trace = { sets = {}, members = {}, size = 0 }
end

function ff.end_trace(c)
  local trace = c.trace
  c.trace = nil
  return trace
end

-- Keep what was traced, if it can be repeated: not what came into a queue, of which hints must learn, nor what
-- is kept beside its record.
function ff.keep_trace(c, known, index_tag, rest)
  local trace = ff.end_trace(c)
  if not trace.group or trace.is_queued or trace.is_kept then return nil end
  trace.head, trace.rest = cut(trace.row, IDS)
  if trace.ended then trace.ended_head, trace.ended_rest = cut(trace.ended, ATTEMPT_IDS) end
  known[index_tag] = known[index_tag] or {}
  known[index_tag][rest] = trace
  return trace
end

local function perform_first(c, id, row, before, plan, group, changes)
  local fields = group and { $field.group, group }
  if before[@attempt_count] ~= 0 or c.trace or ff.held[id] then return (ff.perform(c, id, before, plan, fields)) end
  ff.begin_trace(c)
  local after = ff.perform(c, id, before, plan, fields)
  local trace = ff.end_trace(c)
  if not trace.is_kept then
    trace.after = after
    changes[row] = trace
  end
  return after
end

-- Do a plan to a member of a flow that is stored as this row. Members nobody has touched yet are stored as one
-- text: the result of the first is written for the others too. `group` is their packed group, if it
-- changes along.
function ff.perform_again(c, id, row, before, plan, group)
  local changes = c.again[plan]
  if not changes then
    changes = {}
    c.again[plan] = changes
  end
  local change, index_tag = changes[row], ff.index_tag_of(c, id)
  if not change or ff.held[id] or change.group and not ff.may_emit_again(c, index_tag, change) then
    return perform_first(c, id, row, before, plan, group, changes)
  end
  local key = $key.execution .. id
  if group then
    call('HSET', key, $field.record, change.row, $field.group, group)
  else
    call('HSET', key, $field.record, change.row)
  end
  ff.repeat_moves(c, id, change)
  if change.group then ff.emit_again(c, index_tag, id, '', '', change) end
  if change.is_end then ff.notify_end(c, id) end
  return change.after
end

-- Change a record as one of the same shape was changed, with its own result if it has one; its row. `held` is the
-- lease its event is about, `lease_id` the one it has afterwards.
function ff.repeat_change(c, index_tag, id, change, attempt_id, held, lease_id, op_id, result)
  local key, row = $key.execution .. id, change.head .. pack(attempt_id, lease_id, op_id) .. change.rest
  local ended = change.ended and change.ended_head .. pack(attempt_id, held) .. change.ended_rest
  if ended and result then
    call('HSET', key, $field.record, row, change.ended_field, ended, $field.result, result)
  elseif ended then
    call('HSET', key, $field.record, row, change.ended_field, ended)
  elseif result then
    call('HSET', key, $field.record, row, $field.result, result)
  else
    call('HSET', key, $field.record, row)
  end
  ff.repeat_moves(c, id, change)
  ff.emit_again(c, index_tag, id, held, attempt_id, change)
  if change.stream then ff.notify_stream(c, id, change.stream) end
  if change.is_end then ff.notify_end(c, id) end
  return row
end
