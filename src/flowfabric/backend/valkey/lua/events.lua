-- The log: all events of a call and partition are one stream entry, a list of groups. A group is what
-- its events have in common, {at, namespace, kind, families, worker, instance, tags, details}, and behind
-- that of each event its own: flow, execution, lease, lease epoch, attempt, attempt index. Details and
-- tags are flat lists of names and values.

-- How many elements events share, and how many each has behind them.
local SHARED, OWN = @t.details, @t.attempt_index - @t.details

local function detail(details, name)
  for i = 1, #details, 2 do
    if details[i] == name then return details[i + 1] end
  end
  return ''
end
ff.detail = detail

-- By the text of all families, of which there are few.
local tells_lease = {}

local function has_lease(families)
  local found = tells_lease[families]
  if found == nil then
    found = find(',' .. families .. ',', ',' .. $family.lease .. ',', 1, true) ~= nil
    tells_lease[families] = found
  end
  return found
end

local function without_lease(families)
  if families == $family.lease then return '' end
  local kept = {}
  local from = 1
  while true do
    local comma = find(families, ',', from, true)
    local family = sub(families, from, comma and comma - 1)
    if family ~= $family.lease then kept[#kept + 1] = family end
    if not comma then return concat(kept, ',') end
    from = comma + 1
  end
end

-- mirrors core.events.is_ending
local function is_ending(reason)
  return ENDINGS[reason] or sub(reason, 1, #$events.EXPIRED) == $events.EXPIRED
end

-- Whether no attempt will have what the entry has.
-- mirrors core.events.is_kept
local function is_kept(kind, families, details)
  if kind == $event.acquired then return sub(detail(details, 'reason'), -#$events.RESUMED) == $events.RESUMED end
  if kind == $event.released then return not is_ending(detail(details, 'reason')) end
  return has_lease(families)
end

-- Groups gather per partition until the call ends; `size` is the last group's.
local function log_of(c, tag)
  local log = c.logs[tag]
  if not log then
    log = { groups = {}, event = false, size = 0, is_kept = false }
    c.logs[tag] = log
    ff.notify(c, $base.LOG_TOPIC)
  end
  return log
end

-- Log a group as it is.
function ff.log(c, tag, group)
  local log = log_of(c, tag)
  log.groups[#log.groups + 1] = group
  log.event = false
end

local function begin_group(log, event, families, group)
  log.groups[#log.groups + 1] = group
  log.event, log.group, log.size = event, group, #group
  log.is_kept = is_kept(event[1], families, event[3])
  return group
end

local function emit_own(log, flow_id, id, lease_id, epoch, attempt_id, index)
  local group, size = log.group, log.size
  group[size + 1] = flow_id
  group[size + 2] = id
  group[size + 3] = lease_id
  group[size + 4] = epoch
  group[size + 5] = attempt_id
  group[size + 6] = index
  log.size = size + OWN
end

-- Keep the last event of a log beside its record, as a group of its own.
local function keep_last(log, id)
  local group, own = log.group, log.size - OWN
  local one = { unpack(group, 1, SHARED) }
  for i = 1, OWN do one[SHARED + i] = group[own + i] end
  call('RPUSH', ff.history(id), pack(one))
end

-- Emit an event of a record. `holder` is the record whose lease it is about: the family `lease` of a
-- release is dropped when nobody held it. The entry is kept beside the record if only it tells.
-- mirrors core.events.entry_of
function ff.emit(c, id, event, holder, record)
  local families, held = event[2], HELD[holder[@state]]
  if not held and event[1] == $event.released then
    families = without_lease(families)
    if families == '' then return end
  end
  local worker, instance = '', ''
  if held then worker, instance = holder[@worker_id], holder[@worker_instance_id] end
  local log, namespace, tags = log_of(c, ff.index_tag_of(c, id)), record[@namespace], record[@indexed_tags]
  local group = log.group
  if log.event ~= event or group[@t.families] ~= families or group[@t.worker_id] ~= worker or group[@t.worker_instance_id] ~= instance
    or group[@t.namespace] ~= namespace or group[@t.tags] ~= tags then
    group = begin_group(log, event, families, {
      c.now, namespace, event[1], families, worker, instance, tags, event[3],
    })
  end
  emit_own(log, record[@flow_id], id, held and holder[@lease_id] or '', holder[@lease_epoch], held and holder[@attempt_id] or '',
    held and holder[@attempt_index] or $record.NO_ATTEMPT)
  if log.is_kept then keep_last(log, id) end
  local trace = c.trace
  if trace then
    trace.group, trace.is_kept, trace.is_held = group, log.is_kept, held
    trace.epoch, trace.index = holder[@lease_epoch], held and holder[@attempt_index] or $record.NO_ATTEMPT
    trace.flow_id = record[@flow_id]
  end
end

-- Whether the last group of a log is still the one that has the event of a change.
function ff.may_emit_again(c, index_tag, change)
  local log = c.logs[index_tag]
  return log.event and log.group == change.group
end

-- Emit for a record the event of one with the same shape.
function ff.emit_again(c, index_tag, id, lease_id, attempt_id, change)
  local log, held = c.logs[index_tag], change.is_held
  emit_own(log, change.flow_id, id, held and lease_id or '', change.epoch, held and attempt_id or '', change.index)
end

-- Entries have the instant of their call, and the microsecond of the server's clock behind it, so that
-- those of different partitions are read in the order they were written.
local function log_id(c)
  return string.format('%.0f-%.0f', c.now, c.micros)
end

-- An id behind the last one, for a clock that went back.
local function next_log_id(key)
  local last = call('XINFO', 'STREAM', key)
  for i = 1, #last, 2 do
    if last[i] == 'last-generated-id' then
      local dash = find(last[i + 1], '-', 1, true)
      return sub(last[i + 1], 1, dash) .. string.format('%.0f', tonumber(sub(last[i + 1], dash + 1)) + 1)
    end
  end
end

local function write_log(c, tag, log)
  c.log_id = c.log_id or log_id(c)
  local key, body = ff.log_of(tag), pack(log.groups)
  if not pcall(call, 'XADD', key, c.log_id, 'e', body) then
    call('XADD', key, next_log_id(key), 'e', body)
  end
end

function ff.write_logs(c)
  ff.write_all(c, c.logs, write_log)
end
