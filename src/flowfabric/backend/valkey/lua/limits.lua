-- ff1_attach: request {@attaching, ...}
-- ff1_drop_ended: request {tag, ...}; waiters whose time is over go, and what is left of gates at which all ended

-- Do acts of `core` on limits, each in the partition that its tag names: first all partitions are opened and what
-- has ended there is dropped, and in the end what has changed is written.
function ff.run_acts(args, acts, open, trim, write)
  local c = ff.open(args)
  local items, states = c.request, {}
  for i = 1, #items do
    local tag = items[i][@act.tag]
    states[tag] = states[tag] or open(c, tag)
    -- Every act names its limit first.
    trim(states[tag], items[i][@act.what][1])
  end
  local answers = ff.each(states, items, function(_, item)
    return acts[item[@act.name]](states[item[@act.tag]], item[@act.what])
  end)
  for _, state in pairs(states) do write(state) end
  return ff.close(c, answers)
end

-- What one call drops at most; the next one goes on.
local MOST_DROPPED = 1000

ff.register('attach', function(_, args)
  local c = ff.open(args)
  for i = 1, #c.request do
    local item = c.request[i]
    local tag, listed, unlisted, gone = item[@attaching.tag], item[@attaching.listed], item[@attaching.unlisted], item[@attaching.gone]
    for j = 1, #listed, 2 do call('ZADD', $key.attached .. tag .. ':' .. listed[j], 0, listed[j + 1]) end
    for j = 1, #unlisted, 2 do call('ZREM', $key.attached .. tag .. ':' .. unlisted[j], unlisted[j + 1]) end
    for j = 1, #gone do call('DEL', $key.ledgers .. tag .. ':' .. gone[j]) end
  end
  return ff.close(c, true)
end, { 'allow-cross-slot-keys', 'allow-oom' })

-- Drop what is left of gates at which everything has ended, and with it gates of keys. One that is
-- still used drops its own as it counts.
local function drop_ended_gates(tag, now, most)
  local ended = call('ZRANGEBYSCORE', $key.gate_ends .. tag, '-inf', now, 'LIMIT', 0, most)
  for i = 1, #ended do
    local name = tag .. ':' .. ended[i]
    call('UNLINK', $key.slots .. name, $key.entries .. name, $key.holders .. name)
    call('ZREM', $key.gate_ends .. tag, ended[i])
  end
  return #ended
end

ff.register('drop_ended', function(_, args)
  local c = ff.open(args)
  local left = MOST_DROPPED
  for i = 1, #c.request do
    if left > 0 then left = left - ff.drop_ended_waiters(c.request[i], c.now, left) end
    if left > 0 then left = left - drop_ended_gates(c.request[i], c.now, left) end
  end
  return ff.close(c, true)
end, { 'allow-cross-slot-keys', 'allow-oom' })
