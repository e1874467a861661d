-- ff1_create: insert if absent, with the idempotency key, the flow and the queue place.
-- request: {@create_execution, ...}; a @shape is what many of them have in common
-- answers, of the first executions only if they took long: true, {'duplicate', id}, {'refused', flow or 0, parent, its static}

-- How far behind its age a record of a flooding fairness key stands.
-- mirrors core.new_execution.rank_shift_of
local function rank_shift(c, tag, row, key)
  if key == '' then return 0 end
  local name = ff.fairness(tag, row[@namespace])
  local field = row[@lane] .. ',' .. key
  local last = call('HGET', name, field)
  local shift = last and tonumber(last) + $new_execution.FAIR_STEP_MS - c.now or 0
  if shift < 0 then shift = 0 end
  call('HSET', name, field, c.now + shift)
  return shift
end

-- The earlier of the instant and the duration; one that has passed already is kept.
-- mirrors core.new_execution._deadline
local function deadline(given, length, now)
  local by_policy = length ~= 0 and now + length or 0
  if given == 0 then return by_policy end
  if by_policy == 0 or given < by_policy then return given end
  return by_policy
end

-- mirrors core.new_execution.scoped_key, core.new_execution.known_execution
local function known_id(c, tag, row, key)
  local scope = row[@flow_id] ~= '' and $new_execution.IN_FLOW .. row[@flow_id] or $new_execution.IN_NAMESPACE .. row[@namespace]
  local name = ff.idempotency(tag, scope, key)
  local found = call('GET', name)
  if not found then return nil, name end
  local blank = find(found, ' ', 1, true)
  if tonumber(sub(found, 1, blank - 1)) > c.now then return sub(found, blank + 1), name end
  return nil, name
end

-- mirrors core.new_execution.new_entry
local function remember_key(c, name, id, window)
  -- A test's clock may stand still while the server's runs.
  local life = TEST_MODE and window + 3600000 or window
  call('SET', name, (c.now + window) .. ' ' .. id, 'PX', life)
end

-- A record of a shape, as it is inserted now.
-- mirrors core.new_execution.initial_record, core.new_execution.first_state
local function initial_record(c, tag, shape)
  local now, r = c.now, ff.copy(setmetatable(shape[@shape.record], RECORD_META))
  r[@created_at], r[@moved_at], r[@next] = now, now, $next.first
  local shift = rank_shift(c, tag, r, shape[@shape.fairness_key])
  if shift ~= 0 then ff.put(r, @rank_shift, shift) end
  local deadline_at = deadline(shape[@shape.deadline_at], shape[@shape.deadline_in], now)
  if deadline_at ~= 0 then ff.put(r, @deadline_at, deadline_at) end
  local ahead = shape[@shape.delay_until] > now
  if shape[@shape.has_dependencies] then
    r[@state], r[@reason] = $state.blocked, $reason.dependencies
  elseif ahead then
    r[@state], r[@reason] = $state.delayed, $reason.delay
  end
  if ahead then ff.put(r, @wake_at, shape[@shape.delay_until]) end
  r[@version] = 0
  ff.rank(r)
  ff.derive(r, r, now)
  return r
end

-- The record of a new execution and its packed row. Those of one shape get the same row, unless a fairness key ranks them.
local function record_of(c, tag, shape)
  if shape.record then return shape.record, shape.row end
  local r = initial_record(c, tag, shape)
  local row = pack(r)
  if shape[@shape.fairness_key] == '' then shape.record, shape.row = r, row end
  return r, row
end

-- Put a new record into its views. Those of one shape and partition are put as the first of them.
local function place(c, tag, id, shape, r)
  local change = shape.record and shape.tag == tag and shape.change
  if change then return ff.repeat_moves(c, id, change) end
  if c.is_single then return ff.reindex(c, id, nil, r) end
  ff.begin_trace(c)
  ff.reindex(c, id, nil, r)
  shape.tag, shape.change = tag, ff.end_trace(c)
end

-- Write a new execution, with the packed group of its inbound edges if it has one; its record. Its flow must
-- be there already, and is answered by the caller.
function ff.insert(c, tag, id, shape, static, input, group)
  local key, r, row = $key.execution .. id, record_of(c, tag, shape)
  if input and group then
    call('HSET', key, $field.record, row, $field.static, static, $field.input, input, $field.group, group)
  elseif input then
    call('HSET', key, $field.record, row, $field.static, static, $field.input, input)
  elseif group then
    call('HSET', key, $field.record, row, $field.static, static, $field.group, group)
  else
    call('HSET', key, $field.record, row, $field.static, static)
  end
  place(c, tag, id, shape, r)
  return r
end

-- A child is made while its parent lives, in the same round.
-- mirrors core.checks._explain_child
local function refuse_child(c, tag, shape)
  local new = setmetatable(shape[@shape.record], RECORD_META)
  if new[@parent_id] == '' then return nil end
  local parent, row = ff.load(new[@parent_id])
  if parent and parent[@flow_id] == new[@flow_id] and not FINAL[parent[@state]] and parent[@round] == new[@parent_round] then
    return nil
  end
  local flow = ff.flow(c, tag, new[@flow_id])
  local refused = { 'refused', flow and ff.attach(c, pack(flow)) or 0, 0, 0 }
  if parent then refused[3], refused[4] = ff.show(c, new[@parent_id], row) end
  return refused
end

local function create(c, new)
  local id, shape, key_name = new[@create_execution.id], ff.shape(c, new[@create_execution.shape_argument]), nil
  local tag, flow_id = ff.tag_of(id), shape[@shape.record][@flow_id]
  if new[@create_execution.idempotency_key] ~= '' then
    local found
    found, key_name = known_id(c, tag, shape[@shape.record], new[@create_execution.idempotency_key])
    if found then return { 'duplicate', found } end
  end
  if c.created[id] or (c.has_old and call('EXISTS', $key.execution .. id) == 1) then return { 'duplicate', id } end
  if flow_id ~= '' then
    local refused = refuse_child(c, tag, shape) or ff.join_flow(c, tag, shape[@shape.record])
    if refused then return refused end
  end
  local r = ff.insert(c, tag, id, shape, new[@create_execution.static], c.args[new[@create_execution.input_argument]])
  if key_name and shape[@shape.dedup_window_ms] > 0 then remember_key(c, key_name, id, shape[@shape.dedup_window_ms]) end
  if flow_id ~= '' then ff.member_moved(c, tag, id, nil, r) end
  c.created[id] = true
  return true
end

local KEYS_PER_COMMAND = 1000

-- Whether any of these keys is there: as a rule none is.
function ff.has_any(keys)
  for from = 1, #keys, KEYS_PER_COMMAND do
    local last = from + KEYS_PER_COMMAND - 1
    if call('EXISTS', unpack(keys, from, last < #keys and last or #keys)) > 0 then return true end
  end
  return false
end

local function has_old(executions)
  local keys = {}
  for i = 1, #executions do keys[i] = $key.execution .. executions[i][@create_execution.id] end
  return ff.has_any(keys)
end

ff.register('create', function(_, args)
  local c = ff.open(args)
  c.created, c.has_old, c.is_single = {}, has_old(c.request), #c.request == 1
  return ff.close(c, ff.each(c, c.request, create, CPU_LIMITS.items))
end)
