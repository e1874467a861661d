-- Records and attempts as arrays. Trailing defaults are not stored; reading one gives its default.
-- A record that was read is never changed: `ff.copy` makes the one after it.

function ff.decode(row)
  return setmetatable(unpack_message(row), RECORD_META)
end

-- The record and its stored bytes, nil when there is none.
function ff.load(id)
  local row = call('HGET', 'ff:x:' .. id, 'r')
  if not row then return nil end
  return ff.decode(row), row
end

function ff.copy(r)
  return setmetatable({ unpack(r) }, RECORD_META)
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

-- Unset fields. One that is unset already is left alone, so that arrays stay short.
function ff.clear(r, places)
  for i = 1, #places do
    local place = places[i]
    if r[place] ~= RECORD_DEFAULTS[place] then r[place] = RECORD_DEFAULTS[place] end
  end
end

-- The open attempt of a record, nil when it has none.
function ff.attempt_of(r)
  local attempt = r[@attempt]
  if attempt == '' then return nil end
  return setmetatable(attempt, ATTEMPT_META)
end

function ff.copy_attempt(attempt)
  return setmetatable({ unpack(attempt) }, ATTEMPT_META)
end

function ff.put_attempt(attempt, place, value)
  local size = #attempt
  if place > size + 1 then
    for i = size + 1, place - 1 do attempt[i] = ATTEMPT_DEFAULTS[i] end
  end
  attempt[place] = value
end

-- What follows from the other fields: version, the instant of the change, the timer, the rank.
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
  put(after, @due_at, due_at)
  if after[@priority] ~= before[@priority] or after[@rank_shift] ~= before[@rank_shift] then
    ff.rank(after)
  end
end

function ff.rank(r)
  r[@rank] = r[@created_at] + r[@rank_shift] - r[@priority] * 1e12
end

-- The answer's form of a record: numbers of its two raw elements.
function ff.show(c, id, row)
  local static = call('HGET', 'ff:x:' .. id, 's')
  return ff.attach(c, row), ff.attach(c, static)
end
