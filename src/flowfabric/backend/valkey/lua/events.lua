-- The log: all entries of a call and partition are one stream entry. Details and tags are flat
-- lists of names and values.

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
    found = find(',' .. families .. ',', ',lease,', 1, true) ~= nil
    tells_lease[families] = found
  end
  return found
end

local function without_lease(families)
  if families == 'lease' then return '' end
  local kept = {}
  local from = 1
  while true do
    local comma = find(families, ',', from, true)
    local family = sub(families, from, comma and comma - 1)
    if family ~= 'lease' then kept[#kept + 1] = family end
    if not comma then return concat(kept, ',') end
    from = comma + 1
  end
end

local function is_ending(reason)
  return ENDINGS[reason] or sub(reason, 1, 8) == 'expired:'
end

-- Whether no attempt will tell what the entry tells.
local function is_kept(kind, families, details)
  if kind == 'acquired' then return sub(detail(details, 'reason'), -8) == '_resumed' end
  if kind == 'released' then return not is_ending(detail(details, 'reason')) end
  return has_lease(families)
end

-- Log entries gather per partition until the call ends.
function ff.log(c, tag, entry)
  local log = c.logs[tag]
  if not log then
    log = {}
    c.logs[tag] = log
  end
  log[#log + 1] = entry
  c.rings['log'] = true
end

-- Tell an event of a record. `holder` is the record whose lease it is about: the family `lease` of a
-- release falls away when nobody held it. The entry is kept beside the record if only it tells.
function ff.tell(c, tag, id, event, holder, record)
  local kind, families, details = event[1], event[2], event[3]
  local held = HELD[holder[@state]]
  if not held and kind == 'released' then
    families = without_lease(families)
    if families == '' then return end
  end
  local tags = record[@shown]
  local entry = {
    c.now, id, record[@flow_id], record[@namespace], kind, families,
    held and holder[@lease_id] or '',
    holder[@lease_epoch],
    held and holder[@attempt_id] or '',
    held and holder[@attempt_index] or -1,
    held and holder[@worker_id] or '',
    held and holder[@worker_instance_id] or '',
    tags, details,
  }
  ff.log(c, tag, entry)
  if is_kept(kind, families, details) then
    -- The record's own history has its whole tags; nobody reads them from there.
    call('RPUSH', ff.history(id), pack(entry))
  end
end

-- Entries bear the instant of their call, and the microsecond of the server's clock behind it, so that
-- those of different partitions are read in the order they were written.
local function log_id(now)
  local time = call('TIME')
  return string.format('%.0f-%.0f', now, tonumber(time[1]) * 1e6 + tonumber(time[2]))
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

local function write_log(c, tag, entries)
  c.log_id = c.log_id or log_id(c.now)
  local key, body = ff.log_of(tag), pack(entries)
  if not pcall(call, 'XADD', key, c.log_id, 'e', body) then
    call('XADD', key, next_log_id(key), 'e', body)
  end
end

function ff.write_logs(c)
  ff.write_all(c, c.logs, write_log)
end
