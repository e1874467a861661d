-- ff1_log: entries of the logs of one node's partitions.
-- request: @log
-- answers: {tag, last dropped id or '', last id or '', whether it has more, id, number of the raw
--   entry, ...} for each partition that ever had an entry
--
-- An entry is named by its instant and the microsecond of the server's clock, which puts entries of
-- different partitions in the order they were written. `ff:p:<tag>` remembers up to where a log was
-- dropped (`log`), so that a reader who comes too late is told.

local function last_id(key)
  local last = call('XREVRANGE', key, '+', '-', 'COUNT', 1)[1]
  return last and last[1] or ''
end

local function open_logs(starts)
  local open = {}
  for i = 1, #starts, 2 do
    local tag = starts[i]
    local key = ff.log_of(tag)
    local dropped = call('HGET', $key.partition .. tag, 'log') or ''
    local last = last_id(key)
    if last ~= '' or dropped ~= '' then
      open[#open + 1] = { key = key, tag = tag, from = starts[i + 1], dropped = dropped, last = last }
    end
  end
  return open
end

-- Those of an open log from its first id on. One that asks for none only wants to know the ends.
local function shown(c, log, most)
  local answer = { log.tag, log.dropped, log.last, false }
  if log.from == '' or log.last == '' then return answer end
  local entries = call('XRANGE', log.key, log.from, '+', 'COUNT', most)
  answer[4] = #entries == most
  for i = 1, #entries do
    answer[#answer + 1], answer[#answer + 2] = entries[i][1], ff.attach(c, entries[i][2][2])
  end
  return answer
end

ff.register('log', function(_, args)
  local c = ff.open(args)
  local most = c.request[@log.limit]
  local open, found = open_logs(c.request[@log.starts]), {}
  local each = ff.share(most, #open)
  for i = 1, #open do found[i] = shown(c, open[i], each) end
  return ff.answer(c, found)
end, { 'no-writes', 'allow-cross-slot-keys' })
