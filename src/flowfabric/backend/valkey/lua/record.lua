-- Records and attempts as arrays. Trailing defaults are not stored; reading one gives its default.
-- A record that was read is never changed: `ff.copy` makes the one after it.

-- How many fields any record may have without its table growing, those of its end among them.
local WIDTH = @result_encoding
local ARRAY16, ARRAY16_HEAD, MOST_FIELDS = 0xdc, 3, 1000
-- How a packed array of up to fifteen elements begins.
local FIRST_SHORT, LAST_SHORT = 0x90, 0x9f

local function listed(_, ...)
  return { ... }
end

-- Element by element, because a packed array would be read into a table that grows with it.
function ff.decode(row)
  if byte(row) ~= ARRAY16 then error('a record is not an array') end
  return setmetatable(listed(unpack_from(row, MOST_FIELDS, ARRAY16_HEAD)), RECORD_META)
end

-- A packed array of any length, in the same way.
function ff.array(row)
  local first = byte(row)
  if first == ARRAY16 then return listed(unpack_from(row, MOST_FIELDS, ARRAY16_HEAD)) end
  if first < FIRST_SHORT or first > LAST_SHORT then error('not an array') end
  return listed(unpack_from(row, MOST_FIELDS, 1))
end

-- The stored bytes of a record, nil when there is none. One that is held back is written by that.
function ff.row(id)
  if ff.held[id] then ff.write_held(id) end
  return call('HGET', $key.execution .. id, $field.record) or nil
end

-- The record and its stored bytes, nil when there is none.
function ff.load(id)
  local row = ff.row(id)
  if not row then return nil end
  return ff.decode(row), row
end

-- The record of a row, and that row, nil when there is none. Within a call those of one text are read once.
function ff.read_once(c, row)
  if not row then return nil end
  local r = c.records[row]
  if not r then
    r = ff.decode(row)
    c.records[row] = r
  end
  return r, row
end

function ff.load_once(c, id)
  return ff.read_once(c, ff.row(id))
end

function ff.copy(r)
  local size = #r
  return setmetatable({ unpack(r, 1, size < WIDTH and WIDTH or size) }, RECORD_META)
end

-- Give a record all fields up to a place, so that they can be set one by one.
function ff.widen(r, place)
  for i = #r + 1, place do r[i] = RECORD_DEFAULTS[i] end
end

-- Set a field. An array must not have holes, or it would be packed as a map.
local function put(r, place, value)
  local size = #r
  if place > size + 1 then
    for i = size + 1, place - 1 do r[i] = RECORD_DEFAULTS[i] end
  end
  r[place] = value
end
ff.put = put

-- Unset fields, named in ascending order. Those behind the end are unset already.
function ff.clear(r, places)
  local size = #r
  for i = 1, #places do
    local place = places[i]
    if place > size then return end
    r[place] = RECORD_DEFAULTS[place]
  end
end

-- The open attempt of a record, nil when it has none. One that only began follows from the record.
function ff.attempt_of(r)
  local attempt = r[@attempt]
  if attempt == '' then return nil end
  if attempt == PLAIN then
    attempt = {
      r[@attempt_id], r[@lease_id], r[@attempt_index], r[@attempt_type], $attempt.started, r[@lease_acquired_at],
      r[@lease_epoch], r[@worker_id], r[@worker_instance_id], 0, '', 0, '',
    }
  end
  return setmetatable(attempt, ATTEMPT_META)
end

local ENDED_WIDTH = @a.closed_reason

function ff.copy_attempt(attempt)
  local size = #attempt
  return setmetatable({ unpack(attempt, 1, size < ENDED_WIDTH and ENDED_WIDTH or size) }, ATTEMPT_META)
end

function ff.put_attempt(attempt, place, value)
  local size = #attempt
  if place > size + 1 then
    for i = size + 1, place - 1 do attempt[i] = ATTEMPT_DEFAULTS[i] end
  end
  attempt[place] = value
end

-- What follows from the other fields: version, the instant of the change, the timer, the rank.
-- mirrors core.transition.changed_record
function ff.derive(before, after, now)
  after[@version] = before[@version] + 1
  after[@changed_at] = now
  local due_at = 0
  local counting = COUNTING[after[@state]]
  if counting then
    for i = 1, #counting do
      local instant = after[counting[i]]
      if instant ~= 0 and (due_at == 0 or instant < due_at) then due_at = instant end
    end
  end
  after[@due_at] = due_at
  if after[@priority] ~= before[@priority] or after[@rank_shift] ~= before[@rank_shift] then
    ff.rank(after)
  end
end

-- mirrors core.record.rank_of
function ff.rank(r)
  r[@rank] = r[@created_at] + r[@rank_shift] - r[@priority] * $record.PRIORITY_STEP
end

-- The answer's form of a record: numbers of its two raw elements.
function ff.show(c, id, row)
  local static = call('HGET', $key.execution .. id, $field.static)
  return ff.attach(c, row), ff.attach(c, static)
end

-- The answer to an item whose guard did not hold: what the record is instead, if there is one.
function ff.refused(c, id, row)
  if not row then return { 'refused', 0, 0 } end
  return { 'refused', ff.show(c, id, row) }
end
