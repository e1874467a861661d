-- ff1_read: records and what is asked for beside them.
-- request: {{{id, document names or false}, ...}, {wanted = true, ...}}; a name may end in `*`
-- answers: false without such a record, or {row, static, input, result, attempts, history,
--   documents, upstreams, group, incoming}: numbers of raw elements (0: none), lists of them, and
--   for documents name and number in turn
--
-- ff1_count: request @count, all partitions of one node; answers {state, count}, ...
-- ff1_queues: request @lane; answers {set, depth, best rank}, ...
-- ff1_depths: request @depths, all tags of one node; answers as `queues`

local function attach_found(c, body)
  return body and ff.attach(c, body) or 0
end

-- Attach the documents whose names begin with a prefix.
function ff.attach_under(c, key, prefix, found)
  local names = call('HKEYS', key)
  for i = 1, #names do
    if sub(names[i], 1, #prefix) == prefix then
      found[#found + 1] = names[i]
      found[#found + 1] = ff.attach(c, call('HGET', key, names[i]))
    end
  end
end

local function documents_of(c, id, names)
  local found = {}
  local key = ff.documents(id)
  for i = 1, #names do
    local name = names[i]
    if sub(name, -1) == '*' then
      ff.attach_under(c, key, sub(name, 1, -2), found)
    else
      local body = call('HGET', key, name)
      if body then found[#found + 1], found[#found + 2] = name, ff.attach(c, body) end
    end
  end
  return found
end

local function attempts_of(c, id, r)
  local found = {}
  for index = 0, r[@attempt_count] - 1 do
    local body = call('HGET', $key.execution .. id, $field.attempt .. index)
    if body then found[#found + 1] = ff.attach(c, body) end
  end
  return found
end

local function history_of(c, id)
  local found = call('LRANGE', ff.history(id), 0, -1)
  for i = 1, #found do found[i] = ff.attach(c, found[i]) end
  return found
end

local function read(c, id, names, wanted)
  local key = $key.execution .. id
  local found = call('HMGET', key, $field.record, $field.static)
  if not found[1] then return false end
  local answer = { ff.attach(c, found[1]), ff.attach(c, found[2]), 0, 0, {}, {}, {}, false, false, false }
  if wanted.input then answer[3] = attach_found(c, call('HGET', key, $field.input)) end
  if wanted.result then answer[4] = attach_found(c, call('HGET', key, $field.result)) end
  if wanted.attempts or wanted.history then answer[5] = attempts_of(c, id, ff.decode(found[1])) end
  if wanted.history then answer[6] = history_of(c, id) end
  if names then answer[7] = documents_of(c, id, names) end
  if wanted.upstreams or wanted.upstream_results then
    answer[8] = ff.upstreams(c, id, wanted.upstream_results)
  end
  if wanted.group then answer[9], answer[10] = ff.show_group(c, id), ff.show_incoming(c, id) end
  return answer
end

ff.register('read', function(_, args)
  local c = ff.open(args)
  local items, wanted, answers = c.request[@read.items], c.request[@read.wanted], {}
  for i = 1, #items do answers[i] = read(c, items[i][1], items[i][2], wanted) end
  return ff.answer(c, answers)
end, { 'no-writes' })

ff.register('count', function(_, args)
  local c = ff.open(args)
  local namespace, lane, partitions = c.request[@count.namespace], c.request[@count.lane], c.request[@count.partitions]
  local found = {}
  for i = 1, #partitions do
    local counts = call('HGETALL', ff.counters($ids.TAG .. partitions[i] .. '}', namespace))
    for j = 1, #counts, 2 do
      local comma = find(counts[j], ',', 1, true)
      if lane == '' or sub(counts[j], 1, comma - 1) == lane then
        local state = sub(counts[j], comma + 1)
        found[state] = (found[state] or 0) + tonumber(counts[j + 1])
      end
    end
  end
  local flat = {}
  for state, count in pairs(found) do flat[#flat + 1] = { state, count } end
  return ff.answer(c, flat)
end, { 'no-writes', 'allow-cross-slot-keys' })

-- The depth and the best rank of one set's queues in these partitions, nil when they are empty.
local function depth_of(namespace, lane, req_set, tags)
  local depth, best = 0, nil
  for i = 1, #tags do
    local key = ff.queue(tags[i], req_set, namespace, lane)
    local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    depth = depth + call('ZCARD', key)
    if first and (not best or tonumber(first) < best) then best = tonumber(first) end
  end
  return best and { req_set, depth, best }
end

ff.register('queues', function(_, args)
  local c = ff.open(args)
  local namespace, lane = c.request[@lane.namespace], c.request[@lane.lane]
  local found = {}
  local sets = call('SMEMBERS', ff.sets(namespace, lane))
  for i = 1, #sets do
    local tags = call('ZRANGE', ff.ready(namespace, lane, sets[i]), 0, -1)
    found[#found + 1] = depth_of(namespace, lane, sets[i], tags)
  end
  return ff.answer(c, found)
end, { 'no-writes' })

ff.register('depths', function(_, args)
  local c = ff.open(args)
  local found = {}
  local namespace, lane, queues = c.request[@depths.namespace], c.request[@depths.lane], c.request[@depths.queues]
  for i = 1, #queues do
    found[#found + 1] = depth_of(namespace, lane, queues[i][1], { unpack(queues[i], 2) })
  end
  return ff.answer(c, found)
end, { 'no-writes', 'allow-cross-slot-keys' })
