-- Config: small documents.
--
-- ff:cfg:{cfg} maps a name to `version due_at body`, ff:cfgn:{cfg} orders the names, and
-- ff:rev:{cfg} counts the puts, and ff:cfgt:{cfg} orders those with a time. A document without a body
-- was removed; its version is remembered.

local DOCUMENTS, ORDER, REVISION = $config_key.config, $config_key.config_names, $config_key.revision
local TIMERS = $config_key.config_timers

local function stored(name)
  local found = call('HGET', DOCUMENTS, name)
  local first = find(found, ' ', 1, true)
  local second = find(found, ' ', first + 1, true)
  return tonumber(sub(found, 1, first - 1)), tonumber(sub(found, first + 1, second - 1)), sub(found, second + 1)
end

function ff.put_document(c, name, version, due_at, body)
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
