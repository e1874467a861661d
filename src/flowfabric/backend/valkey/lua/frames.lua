-- ff1_frames: ranges of frames, and whether their streams have ended.
-- request: {{id, attempt index, from, to, limit}, ...}; from and to as XRANGE has them
-- answers: {closed_at, closed_reason, streams}; per mode 0 or the number of the raw element that holds
--   the frames found, each {id, {field, value, ...}}

-- ff1_summary: request {id, attempt index}; answers false or {document, version, kind, last updated,
--   first applied}; the document is the number of a raw element

local RETAINED, MODES = @m.total_bytes, @m.best_effort - @m.total_bytes

-- When and why a stream was closed: the open attempt is in the record, others beside it.
local function closing(id, index)
  local r = ff.load(id)
  local attempt = r and ff.attempt_of(r)
  if not attempt or attempt[@a.index] ~= index then
    local ended = r and call('HGET', ff.execution(id), $field.attempt .. index)
    if not ended then return 0, '' end
    attempt = setmetatable(unpack_message(ended), ATTEMPT_META)
  end
  return attempt[@a.closed_at], attempt[@a.closed_reason]
end

local function read(c, item)
  local id, index = item[@frames.id], item[@frames.attempt_index]
  local meter = ff.meter(ff.meter_key(id, index))
  local streams = { 0, 0, 0 }
  if item[@frames.limit] > 0 and not ff.is_expired(meter, c.now) then
    for mode = 1, MODES do
      if meter[RETAINED + mode] > 0 then
        local key = ff.frames_key(id, index) .. mode
        streams[mode] = ff.attach(c, call('XRANGE', key, item[@frames.start], item[@frames.end], 'COUNT', item[@frames.limit]))
      end
    end
  end
  local closed_at, closed_reason = closing(id, index)
  return { closed_at, closed_reason, streams }
end

ff.register('frames', function(_, args)
  local c = ff.open(args)
  return ff.answer(c, ff.each(c, c.request, read))
end, { 'no-writes' })

ff.register('summary', function(_, args)
  local c = ff.open(args)
  local key = ff.meter_key(c.request[@of_attempt.id], c.request[@of_attempt.attempt_index])
  local stored = call('HMGET', key, 'd', 'k', 'u')
  if not stored[1] then return ff.answer(c, false) end
  local meter = ff.meter(key)
  return ff.answer(c, { ff.attach(c, stored[1]), meter[@m.summary_version], stored[2], tonumber(stored[3]), meter[@m.summary_since] })
end, { 'no-writes' })
