-- Config: small documents.
--
-- ff:cfg:{cfg} maps a name to `version due_at body`, ff:cfgn:{cfg} orders the names, and
-- ff:rev:{cfg} counts the puts, and ff:cfgt:{cfg} orders those with a time. A document without a body
-- was removed; its version is remembered.

local DOCUMENTS, ORDER, REVISION = $config_key.config, $config_key.config_names, $config_key.revision
local TIMERS = $config_key.config_timers

function ff.put_document(name, version, due_at, body)
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
