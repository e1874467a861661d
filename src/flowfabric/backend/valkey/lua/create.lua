-- ff1_create: insert if absent, with the idempotency key, the flow and the queue place.
-- request: {{id, record row, static text, input, window, delay_until, deadline_at, deadline_in,
--   has_dependencies, fairness key, idempotency key}, ...}; input is an argument number or 0
-- answers, of the first births only if they took long: {'created'}, {'duplicate', id},
--   {'refused', flow or 0}

local FAIR_STEP_MS = 1000
local CREATED = { 'created' }

-- How far behind its age a record of a flooding fairness key stands.
local function rank_shift(c, tag, row, key)
  if key == '' then return 0 end
  local name = ff.fairness(tag, row[@namespace])
  local field = row[@lane] .. ',' .. key
  local last = call('HGET', name, field)
  local shift = last and tonumber(last) + FAIR_STEP_MS - c.now or 0
  if shift < 0 then shift = 0 end
  call('HSET', name, field, c.now + shift)
  return shift
end

-- The earlier of the instant and the duration; one that has passed already is kept.
local function deadline(given, length, now)
  local by_policy = length ~= 0 and now + length or 0
  if given == 0 then return by_policy end
  if by_policy == 0 or given < by_policy then return given end
  return by_policy
end

local function known_id(c, tag, row, key)
  local scope = row[@flow_id] ~= '' and 'flow:' .. row[@flow_id] or 'namespace:' .. row[@namespace]
  local name = ff.idempotency(tag, scope, key)
  local found = call('GET', name)
  if not found then return nil, name end
  local blank = find(found, ' ', 1, true)
  if tonumber(sub(found, 1, blank - 1)) > c.now then return sub(found, blank + 1), name end
  return nil, name
end

local function remember_key(c, name, id, window)
  -- A test's clock may stand still while the server's runs.
  local life = TEST_MODE and window + 3600000 or window
  call('SET', name, (c.now + window) .. ' ' .. id, 'PX', life)
end

-- The record of a birth as the creating step writes it.
function ff.born(c, tag, birth)
  local now = c.now
  local r = setmetatable(birth[2], RECORD_META)
  r[@created_at], r[@moved_at], r[@next] = now, now, 'first'
  r[@rank_shift] = rank_shift(c, tag, r, birth[10])
  local deadline_at = deadline(birth[7], birth[8], now)
  if deadline_at ~= 0 then ff.put(r, @deadline_at, deadline_at) end
  local ahead = birth[6] > now
  if birth[9] then
    r[@state], r[@reason] = 'blocked', 'dependencies'
  elseif ahead then
    r[@state], r[@reason] = 'delayed', 'delay'
  end
  if ahead then ff.put(r, @wake_at, birth[6]) end
  r[@version] = 0
  ff.rank(r)
  ff.derive(r, r, now)
  return r
end

-- Write a new execution; its flow must be there already, and is told by the caller.
local function insert(c, birth, tag, key_name)
  local id, r = birth[1], ff.born(c, tag, birth)
  local fields = { 's', birth[3] }
  if birth[4] ~= 0 then fields[3], fields[4] = 'in', c.args[birth[4]] end
  ff.write(c, id, nil, r, nil, fields)
  if key_name and birth[5] > 0 then remember_key(c, key_name, id, birth[5]) end
  return r
end

local function create(c, birth)
  local id = birth[1]
  local tag = ff.tag_of(id)
  local key_name
  if birth[11] ~= '' then
    local found
    found, key_name = known_id(c, tag, birth[2], birth[11])
    if found then return { 'duplicate', found } end
  end
  if c.born[id] or (c.has_old and call('EXISTS', 'ff:x:' .. id) == 1) then return { 'duplicate', id } end
  if birth[2][@flow_id] ~= '' then
    local refused = ff.join_flow(c, tag, birth[2])
    if refused then return refused end
  end
  local r = insert(c, birth, tag, key_name)
  if r[@flow_id] ~= '' then ff.member_moved(c, tag, id, nil, r) end
  c.born[id] = true
  return CREATED
end

-- Records asked for in one command.
local MANY = 1000

-- Whether any of these keys is there: as a rule none is.
function ff.has_any(keys)
  for from = 1, #keys, MANY do
    local last = from + MANY - 1
    if call('EXISTS', unpack(keys, from, last < #keys and last or #keys)) > 0 then return true end
  end
  return false
end

local function has_old(births)
  local keys = {}
  for i = 1, #births do keys[i] = 'ff:x:' .. births[i][1] end
  return ff.has_any(keys)
end

ff.register('create', function(_, args)
  local c = ff.open(args)
  c.born, c.has_old = {}, has_old(c.request)
  return ff.close(c, ff.each(c, c.request, create, LONG.items))
end)
