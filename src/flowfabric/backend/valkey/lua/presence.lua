-- ff1_presence: who is there. An entry ends when its time passes without a sign of life.
-- request: {{'register', namespace, instance, worker, ttl_ms, body}, {'heartbeat', namespace,
--   instance}, {'leave', namespace, instance}, ...}; body is packed text the functions do not read
-- answers: {status, next expiry}, or whether it was there for a leave
-- ff1_workers: request {namespace, after, limit}; answers {registered_at, heartbeat_at, body}, ...
--
-- ff:w:{ns:<namespace>} maps an instance to {worker, ttl_ms, registered_at, heartbeat_at, body}, and
-- ff:wn:{ns:<namespace>} orders the instances.

local PAGE = 500

local function names(namespace)
  return 'ff:w:{ns:' .. namespace .. '}', 'ff:wn:{ns:' .. namespace .. '}'
end

local function ends_at(worker)
  local last = worker[4] > worker[3] and worker[4] or worker[3]
  return last + worker[2]
end

local function live(c, entries, instance)
  local found = call('HGET', entries, instance)
  local worker = found and unpack_message(found)
  return worker and ends_at(worker) > c.now and worker or nil
end

local function register(c, item)
  local entries, order = names(item[2])
  local known = live(c, entries, item[3])
  if known and known[1] ~= item[4] then return { 'reassigned', ends_at(known) } end
  local worker = { item[4], item[5], known and known[3] or c.now, known and c.now or 0, item[6] }
  call('HSET', entries, item[3], pack(worker))
  call('ZADD', order, 0, item[3])
  return { known and 'refreshed' or 'registered', ends_at(worker) }
end

local function heartbeat(c, item)
  local entries = names(item[2])
  local known = live(c, entries, item[3])
  if not known then return { 'not_registered', 0 } end
  known[4] = c.now
  call('HSET', entries, item[3], pack(known))
  return { 'refreshed', ends_at(known) }
end

local function leave(c, item)
  local entries, order = names(item[2])
  local known = live(c, entries, item[3])
  call('HDEL', entries, item[3])
  call('ZREM', order, item[3])
  return { known and true or false }
end

local RUN = { register = register, heartbeat = heartbeat, leave = leave }

ff.register('presence', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, function(_, item) return RUN[item[1]](c, item) end))
end)

ff.register('workers', function(_, args)
  local c = ff.open(args)
  local namespace, after, limit = c.request[1], c.request[2], c.request[3]
  local entries, order = names(namespace)
  local found = {}
  local from = after == '' and '-' or '(' .. after
  while #found < limit do
    local instances = call('ZRANGE', order, from, '+', 'BYLEX', 'LIMIT', 0, PAGE)
    for i = 1, #instances do
      local worker = live(c, entries, instances[i])
      if worker and #found < limit then found[#found + 1] = { worker[3], worker[4], worker[5] } end
    end
    if #instances < PAGE then break end
    from = '(' .. instances[#instances]
  end
  return ff.answer(c, found)
end, { 'no-writes' })
