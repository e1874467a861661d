-- ff1_purge: what is past its retention goes, whole, and the record last.
-- request: {id, ...}
-- answers: {'purged', row, static}, numbers of raw elements or 0 when it had no limits; {'put off'} for a
--   member whose flow goes on; {'kept'} when it is not, or no longer, to go
--
-- ff1_trim: entries of a log go, up to the last of those that are too old or too many
-- request: {@trim_log, ...}; answers how many went

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

local function member_purged(c, tag, flow_id, flow)
  flow[@f.purged_count] = flow[@f.purged_count] + 1
  flow[@f.version], flow[@f.changed_at] = flow[@f.version] + 1, c.now
  ff.put_flow(c, tag, flow_id, flow)
end

-- mirrors core.retention.is_forgotten
local function is_forgotten(r)
  if r[@parent_id] == '' then return false end
  local parent = ff.load(r[@parent_id])
  return not parent or r[@parent_round] < parent[@kept_round]
end

-- mirrors core.retention.judge_purge
local function purge(c, id)
  local r, row = ff.load(id)
  if not r or not FINAL[r[@state]] or r[@purge_at] > c.now then return { 'kept' } end
  local tag = ff.tag_of(id)
  local flow = r[@flow_id] ~= '' and ff.flow(c, tag, r[@flow_id])
  -- A member's result may still be somebody's input, unless it is a forgotten child.
  if flow and flow[@f.finished_at] == 0 and not is_forgotten(r) then
    put_off(c, id, r)
    return { 'put off' }
  end
  local answer = { 'purged', 0, 0 }
  if r[@gated] then answer[2], answer[3] = ff.show(c, id, row) end
  drop_owned(id, r)
  ff.reindex(c, id, r, nil)
  if flow then member_purged(c, tag, r[@flow_id], flow) end
  call('UNLINK', ff.execution(id))
  return answer
end

ff.register('purge', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, purge))
end, { 'allow-oom' })

-- A reader who comes too late learns it from what `ff:p:<tag>` remembers of the last entry that went. Entries that
-- another call has dropped already are not reported again.
local function trim(_, item)
  local tag = item[@trim_log.tag]
  local dropped = call('XTRIM', ff.log_of(tag), 'MINID', item[@trim_log.keep_from])
  if dropped > 0 then call('HSET', $key.partition .. tag, 'log', item[@trim_log.last]) end
  return { dropped }
end

ff.register('trim', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, trim))
end, { 'allow-oom' })
