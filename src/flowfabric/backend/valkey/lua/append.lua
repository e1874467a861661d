-- ff1_append: frames of an attempt's stream, under the fence of its lease holder.
-- request: {@append_frames, ...}. Modes: 1 durable, 2 summary, 3 best effort
-- answers: {'appended', ids, frame count, retained, summary version, replayed},
--   {'refused', row, static, summary version, places of frames seen before}, {'too large'}
--
-- ff:m:<id>:<attempt> holds the counters (`m`), the summary (`d` document, `k` kind, `u` instant) and
-- the writer's last numbers (`n<slot>`). ff:s:<id>:<attempt>:<mode> is a stream for each mode, so that
-- a trim never has to pass the frames of another.

-- Modes by number, in the order of their counters, which follow RETAINED.
local RETAINED = @m.total_bytes
local DURABLE, SUMMARY, BEST_EFFORT = @m.durable - RETAINED, @m.summary - RETAINED, @m.best_effort - RETAINED

function ff.meter_key(id, attempt)
  return $key.meter .. id .. ':' .. attempt
end

-- Completed by the number of a mode.
function ff.frames_key(id, attempt)
  return $key.frames .. id .. ':' .. attempt .. ':'
end

local function meter_at(key)
  local stored = call('HGET', key, 'm')
  if stored then return unpack_message(stored) end
  return { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
end

local function is_expired(meter, now)
  return meter[@m.expires_at] > 0 and meter[@m.expires_at] <= now
end

-- Whether this is the fence of the record's lease, and the lease still runs.
function ff.holds(r, lease_id, epoch, attempt_id, now)
  return r[@state] == $state.active and r[@lease_id] == lease_id and r[@lease_epoch] == epoch
    and r[@attempt_id] == attempt_id and r[@lease_until] > now
end

local function takes_frames(r, item, now)
  if not ff.holds(r, item[@append_frames.lease_id], item[@append_frames.lease_epoch], item[@append_frames.attempt_id], now) or r[@attempt_index] ~= item[@append_frames.attempt_index] then return false end
  local attempt = ff.attempt_of(r)
  return attempt and attempt[@a.closed_at] == 0
end

local function is_too_large(c, frames, summary)
  for i = 3, #frames, 3 do
    if frames[i] > $streams.MAX_FRAME_BYTES then return true end
  end
  return summary and #c.args[summary[@put_summary.body_argument]] > $merge_patch.MAX_DOCUMENT_BYTES
end

-- The id a frame with this writer's number was given; nil when there is none.
local function earlier_id(to, number)
  if number == 0 then return nil end
  local known = call('HGET', to.meter, 'n' .. number % $streams.NUMBERS_KEPT)
  if not known then return nil end
  local blank = find(known, ' ', 1, true)
  local last = tonumber(sub(known, 1, blank - 1))
  -- Writers count up: a slot that holds a lower number is free for this one.
  if last < number then return nil end
  return last == number and sub(known, blank + 1) or $streams.FORGOTTEN
end

-- Per frame the id of one that was there before, and how many were.
local function look_up(to, frames)
  local earlier, places = {}, {}
  for place = 1, #frames / 3 do
    local id = earlier_id(to, frames[3 * place - 1])
    earlier[place] = id or false
    if id then places[#places + 1] = place - 1 end
  end
  return earlier, places
end

-- Whether a document was made from the stored one and the patches that are new; a number twice in
-- one item is one frame.
local function follows(meter, summary, frames, earlier)
  local numbers, new = {}, 0
  for place = 1, #earlier do
    local mode, number = frames[3 * place - 2], frames[3 * place - 1]
    if not earlier[place] and not numbers[number] then
      if mode == SUMMARY then new = new + 1 end
      if number > 0 then numbers[number] = true end
    end
  end
  return summary[@put_summary.expected_version] == meter[@m.summary_version] and summary[@put_summary.patches] == new
end

local function put_frame(to, ms, id, mode, body, version)
  local command = { 'XADD', to.frames .. mode, id, 'f', body }
  if version > 0 then command[6], command[7] = 'v', version end
  -- An instant that was not given is that of the id, unless the clock went back.
  if ms ~= to.now then
    command[#command + 1] = 't'
    command[#command + 1] = to.now
  end
  call(unpack(command))
end

local function count_frame(meter, mode, size, ms, seq)
  meter[@m.frame_count] = meter[@m.frame_count] + 1
  meter[@m.total_bytes] = meter[@m.total_bytes] + size
  meter[RETAINED + mode] = meter[RETAINED + mode] + 1
  meter[@m.last_ms], meter[@m.last_seq] = ms, seq
  if mode ~= BEST_EFFORT then meter[@m.has_durable] = 1 end
end

-- Append what is new; the ids of all frames of the item.
local function put_frames(c, to, meter, item, earlier)
  local frames, ids, numbered, version = item[@append_frames.frames], {}, {}, meter[@m.summary_version]
  -- Ids go up even when the clock does not.
  local ms, seq = to.now, 0
  if ms <= meter[@m.last_ms] then ms, seq = meter[@m.last_ms], meter[@m.last_seq] + 1 end
  for place = 1, #earlier do
    local mode, number = frames[3 * place - 2], frames[3 * place - 1]
    local id = earlier[place] or numbered[number]
    if not id then
      id = ms .. '-' .. seq
      if mode == SUMMARY then version = version + 1 end
      local frame_version = mode == SUMMARY and item[@append_frames.summary] and version or 0
      put_frame(to, ms, id, mode, c.args[item[@append_frames.first_argument] + place - 1], frame_version)
      count_frame(meter, mode, frames[3 * place], ms, seq)
      seq = seq + 1
      if number > 0 then
        numbered[number] = id
        call('HSET', to.meter, 'n' .. number % $streams.NUMBERS_KEPT, string.format('%.0f ', number) .. id)
      end
    end
    ids[place] = id
  end
  return ids
end

local function put_summary(c, to, meter, summary)
  meter[@m.summary_version] = summary[@put_summary.expected_version] + summary[@put_summary.patches]
  if meter[@m.summary_since] == 0 then meter[@m.summary_since] = to.now end
  call('HSET', to.meter, 'd', c.args[summary[@put_summary.body_argument]], 'k', summary[@put_summary.kind], 'u', to.now)
end

-- Keep the newest of one mode. An approximate trim waits until enough frames are surplus.
local function trim(to, meter, mode, length, exact)
  local slack = exact and 0 or floor(length / $streams.TRIM_SLACK)
  if meter[RETAINED + mode] - length <= slack then return end
  call('XTRIM', to.frames .. mode, 'MAXLEN', string.format('%.0f', length))
  meter[RETAINED + mode] = length
end

-- Frames of a stream that expired must not come back to life with the next one.
local function drop_frames(to, meter)
  for mode = DURABLE, BEST_EFFORT do
    call('UNLINK', to.frames .. mode)
    meter[RETAINED + mode] = 0
  end
  meter[@m.expires_at] = 0
end

-- Short-lived frames end only in a stream that never had any others. The server frees
-- them, too, unless a test's clock says when.
local function set_end(to, meter, expire_ms)
  if meter[@m.has_durable] == 1 then
    if meter[@m.expires_at] > 0 then
      meter[@m.expires_at] = 0
      call('PERSIST', to.frames .. BEST_EFFORT)
    end
  elseif expire_ms > 0 then
    meter[@m.expires_at] = to.now + expire_ms
    if not TEST_MODE then
      call('PEXPIREAT', to.frames .. BEST_EFFORT, string.format('%.0f', meter[@m.expires_at]))
    end
  end
end

local function retained(meter)
  return meter[RETAINED + DURABLE] + meter[RETAINED + SUMMARY] + meter[RETAINED + BEST_EFFORT]
end

local function appended(meter, ids, replayed)
  return { 'appended', ids, meter[@m.frame_count], retained(meter), meter[@m.summary_version], replayed }
end

local function refused(c, id, row, meter, places)
  local answer = ff.refused(c, id, row)
  answer[4], answer[5] = meter[@m.summary_version], places
  return answer
end

local function append(c, item)
  local id, attempt, frames, summary = item[@append_frames.id], item[@append_frames.attempt_index], item[@append_frames.frames], item[@append_frames.summary]
  local to = { meter = ff.meter_key(id, attempt), frames = ff.frames_key(id, attempt), now = c.now }
  local r, row = ff.load(id)
  local meter = meter_at(to.meter)
  if not r or not takes_frames(r, item, c.now) then return refused(c, id, row, meter, {}) end
  if is_too_large(c, frames, summary) then return { 'too large' } end
  local earlier, places = look_up(to, frames)
  if #earlier > 0 and #places == #earlier then return appended(meter, earlier, true) end
  if summary and not follows(meter, summary, frames, earlier) then
    return refused(c, id, row, meter, places)
  end
  if is_expired(meter, c.now) then drop_frames(to, meter) end
  local ids = put_frames(c, to, meter, item, earlier)
  if summary then put_summary(c, to, meter, summary) end
  set_end(to, meter, item[@append_frames.expire_ms])
  for i = 1, #item[@append_frames.trims], 3 do trim(to, meter, item[@append_frames.trims][i], item[@append_frames.trims][i + 1], item[@append_frames.trims][i + 2]) end
  call('HSET', to.meter, 'm', pack(meter))
  ff.notify_stream(c, id, attempt)
  return appended(meter, ids, false)
end

ff.register('append', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, append))
end)
