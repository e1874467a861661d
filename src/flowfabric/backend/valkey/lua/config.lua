-- ff1_config_put: small documents, changed by compare-and-set.
-- request: {{name, expected version, body, due_at}, ...}; body is an argument number
-- answers: {applied, version, due_at, number of the raw body as stored}
-- ff1_config_get: request {name, ...}; answers false or {version, due_at, number of the raw body}
-- ff1_config_list: request {prefix, after, limit}; answers {name, version, due_at, number}, ...
--
-- ff:cfg:{cfg} maps a name to `version due_at body`, ff:cfgn:{cfg} orders the names, and
-- ff:rev:{cfg} counts the puts, and ff:cfgt:{cfg} orders those with a time. A document without a body
-- was removed; its version is remembered.

local DOCUMENTS, ORDER, REVISION = $config_key.config, $config_key.config_names, $config_key.revision
local TIMERS = $config_key.config_timers

local function stored(name)
  local found = call('HGET', DOCUMENTS, name)
  if not found then return 0, 0, '' end
  local first = find(found, ' ', 1, true)
  local second = find(found, ' ', first + 1, true)
  return tonumber(sub(found, 1, first - 1)), tonumber(sub(found, first + 1, second - 1)), sub(found, second + 1)
end

local function put(c, item)
  local name, body, due_at = item[1], c.args[item[3]], item[4]
  local version, known_due, found = stored(name)
  local shown = found ~= '' and version or 0
  if shown ~= item[2] or (found == '' and body == '') then
    return { false, shown, found ~= '' and known_due or 0, ff.attach(c, found) }
  end
  if body == '' then due_at = 0 end
  version = version + 1
  call('HSET', DOCUMENTS, name, version .. ' ' .. due_at .. ' ' .. body)
  if body == '' then
    call('ZREM', ORDER, name)
  else
    call('ZADD', ORDER, 0, name)
  end
  if due_at ~= 0 then
    call('ZADD', TIMERS, due_at, name)
  else
    call('ZREM', TIMERS, name)
  end
  call('INCR', REVISION)
  ff.ring(c, $base.CONFIG_BELL)
  return { true, version, due_at, ff.attach(c, body) }
end

-- Documents whose time has come: {due_at, name}, ..., and where to go on or false.
function ff.due_config(c, limit, after_due, after_id)
  local walk = ff.open_walk(TIMERS, after_due, after_id, c.now)
  local found, last = ff.merge_due({ walk }, limit)
  local shown = {}
  for i = 1, #found do
    local name = found[i][2]
    local version, due_at, body = stored(name)
    shown[i] = { name, version, due_at, ff.attach(c, body) }
  end
  return shown, last
end

ff.register('config_put', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, put))
end)

ff.register('config_get', function(_, args)
  local c = ff.open(args)
  local answers = {}
  for i = 1, #c.request do
    local version, due_at, body = stored(c.request[i])
    answers[i] = body ~= '' and { version, due_at, ff.attach(c, body) } or false
  end
  return ff.answer(c, answers)
end, { 'no-writes' })

ff.register('config_list', function(_, args)
  local c = ff.open(args)
  local prefix, after, limit = c.request[1], c.request[2], c.request[3]
  local from = after < prefix and '[' .. prefix or '(' .. after
  local names = limit > 0 and call('ZRANGE', ORDER, from, '+', 'BYLEX', 'LIMIT', 0, limit) or {}
  local found = {}
  for i = 1, #names do
    if sub(names[i], 1, #prefix) ~= prefix then break end
    local version, due_at, body = stored(names[i])
    found[i] = { names[i], version, due_at, ff.attach(c, body) }
  end
  return ff.answer(c, found)
end, { 'no-writes' })
