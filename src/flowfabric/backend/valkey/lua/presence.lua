-- ff1_heartbeat: a sign of life. An entry ends when its time passes without one, and is not revived.
-- request: {{namespace, instance}, ...}; answers: {status, next expiry}
--
-- ff:w:{ns:<namespace>} maps an instance to {worker, ttl_ms, registered_at, heartbeat_at, body}, and
-- ff:wn:{ns:<namespace>} orders the instances.

local function names(namespace)
  local tag = '{ns:' .. namespace .. '}'
  return $key.workers .. tag, $key.worker_names .. tag
end

local function ends_at(worker)
  local last = worker[4] > worker[3] and worker[4] or worker[3]
  return last + worker[2]
end

local function heartbeat(c, item)
  local entries, instance = names(item[@heartbeat.namespace]), item[@heartbeat.instance_id]
  local found = call('HGET', entries, instance)
  local worker = found and unpack_message(found)
  if not worker or ends_at(worker) <= c.now then return { 'not_registered', 0 } end
  worker[4] = c.now
  call('HSET', entries, instance, pack(worker))
  return { 'refreshed', ends_at(worker) }
end

ff.register('heartbeat', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, heartbeat))
end)

-- Keep a worker's packed entry, or drop it if there is none.
function ff.put_worker(namespace, instance, row)
  local entries, order = names(namespace)
  if row then
    call('HSET', entries, instance, row)
    call('ZADD', order, 0, instance)
  else
    call('HDEL', entries, instance)
    call('ZREM', order, instance)
  end
end
