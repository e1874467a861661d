-- ff1_purge: what is past its retention goes, whole, and the record last.
-- request: {id, ...}
-- answers: {'purged', row, static}, numbers of raw elements or 0 when it had no limits; {'put off'} for a
--   member whose flow goes on; {'kept'} when it is not, or no longer, to go
--
-- ff1_overfull: request @full; answers the tags of
--   logs that hold more
-- ff1_trim: request {@trim, ...}; answers how many went

-- How many entries beyond the number to keep one call drops.
local MOST_DROPPED = 1000
local MODES = @m.best_effort - @m.total_bytes

-- mirrors core.retention.put_off
local function put_off(c, id, r)
  local after = ff.copy(r)
  local wait = r[@retention_ms] > $retention.SHORTEST_WAIT_MS and r[@retention_ms] or $retention.SHORTEST_WAIT_MS
  ff.put(after, @purge_at, c.now + wait)
  ff.derive(r, after, c.now)
  ff.write(c, id, r, after)
end

-- Everything beside a record. Its idempotency key stays until its own window ends, and edges stay
-- with the flow.
local function drop_owned(id, r)
  for attempt = 0, r[@attempt_count] - 1 do
    local frames = ff.frames_key(id, attempt)
    call('UNLINK', ff.meter_key(id, attempt))
    for mode = 1, MODES do call('UNLINK', frames .. mode) end
  end
  call('UNLINK', ff.documents(id), ff.history(id), ff.journal(id))
end

-- mirrors core.retention.judge_purge
local function purge(c, id)
  local r, row = ff.load(id)
  if not r or not FINAL[r[@state]] or r[@purge_at] > c.now then return { 'kept' } end
  local tag = ff.tag_of(id)
  if ff.is_needed(c, tag, r) then
    put_off(c, id, r)
    return { 'put off' }
  end
  local answer = { 'purged', 0, 0 }
  if r[@gated] then answer[2], answer[3] = ff.show(c, id, row) end
  drop_owned(id, r)
  ff.reindex(c, id, r, nil)
  ff.member_purged(c, tag, r)
  call('UNLINK', ff.execution(id))
  return answer
end

ff.register('purge', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, purge))
end, { 'allow-oom' })

-- The first id that is young enough, as the end of a range of those that are not.
local function too_old(c, keep_ms)
  local from = c.now - keep_ms
  return string.format('(%.0f-0', from > 0 and from or 0)
end

-- The last entry that is too old, or one too many; nil when none is.
local function last_to_go(key, keep, before)
  local old = before ~= '(0-0' and call('XREVRANGE', key, before, '-', 'COUNT', 1)[1]
  local excess = call('XLEN', key) - keep
  if excess <= 0 then return old and old[1] end
  local first = call('XRANGE', key, '-', '+', 'COUNT', excess < MOST_DROPPED and excess or MOST_DROPPED)
  local last = first[#first][1]
  -- Of the two the later: the one that is also among the others.
  if old and #call('XRANGE', key, last, old[1], 'COUNT', 1) > 0 then return old[1] end
  return last
end

ff.register('overfull', function(_, args)
  local c = ff.open(args)
  local keep, before, found = c.request[@full.entries], too_old(c, c.request[@full.keep_ms]), {}
  local tags = c.request[@full.tags]
  for i = 1, #tags do
    local key = ff.log_of(tags[i])
    local is_old = before ~= '(0-0' and #call('XRANGE', key, '-', before, 'COUNT', 1) > 0
    if is_old or call('XLEN', key) > keep then found[#found + 1] = tags[i] end
  end
  return ff.answer(c, found)
end, { 'no-writes', 'allow-cross-slot-keys' })

-- A reader who comes too late is told by what `ff:p:<tag>` remembers of the last entry that went.
local function trim(c, item)
  local tag = item[@trim.tag]
  local key = ff.log_of(tag)
  local last = last_to_go(key, item[@trim.entries], too_old(c, item[@trim.keep_ms]))
  if not last then return { 0 } end
  call('HSET', $key.partition .. tag, 'log', last)
  local dash = find(last, '-', 1, true)
  local next_id = sub(last, 1, dash) .. string.format('%.0f', tonumber(sub(last, dash + 1)) + 1)
  return { call('XTRIM', key, 'MINID', next_id) }
end

ff.register('trim', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, trim))
end, { 'allow-oom' })
