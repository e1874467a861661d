-- ff1_limits: budgets and gates as of now, nothing dropped.
-- request: {tag, name}, ...; a name begins with b:, q: or k:
-- answers: of a budget {id, packed budget, id, packed budget, ...}, leaf first, {} when there is none; of a
--   gate {quota or {}, slots, entries, ends, oldest}, {} when there is none; {false, fault} of an unreadable one
-- ff1_attached: request {tag, budget, after, limit}; answers execution ids in order
-- ff1_attach: request {tag, listed, unlisted, gone}, ...: budget and execution in turn for those created under
--   a budget and for those purged, and executions whose ledgers go
-- ff1_drop_ended: request tags; waiters whose time is over go, and what is left of gates at which all ended

-- What one call drops at most; the next one goes on.
local MOST_DROPPED = 1000

local function show_chain(state, id)
  ff.trim_holds(state, id)
  local chain, fault = ff.chain(state, id)
  if fault then return { false, fault } end
  local shown = {}
  for i = 1, #(chain or {}) do
    shown[2 * i - 1], shown[2 * i] = chain[i].id, chain[i].budget
  end
  return shown
end

local function show_gate(state, name)
  local gate, fault = ff.gate(state, name)
  if fault then return { false, fault } end
  if not gate then return {} end
  return { gate.quota or {}, gate.slots, gate.entries, gate.ends, ff.oldest_at(state, gate, gate.entries) }
end

ff.register('limits', function(_, args)
  local c = ff.open(args)
  local answers, budgets, gates = {}, {}, {}
  for i = 1, #c.request do
    local tag, name = c.request[i][@limit.tag], c.request[i][@limit.limit]
    if sub(name, 1, 2) == $gates.BUDGET then
      budgets[tag] = budgets[tag] or ff.open_budgets(c, tag, false)
      answers[i] = show_chain(budgets[tag], sub(name, 3))
    else
      gates[tag] = gates[tag] or ff.open_gates(c, tag, false)
      answers[i] = show_gate(gates[tag], name)
    end
  end
  return ff.answer(c, answers)
end, { 'no-writes' })

ff.register('attached', function(_, args)
  local c = ff.open(args)
  local tag, budget, after, limit = c.request[@attached.tag], c.request[@attached.budget_id], c.request[@attached.after], c.request[@attached.limit]
  local from = after == '' and '-' or '(' .. after
  return ff.answer(c, call('ZRANGE', $key.attached .. tag .. ':' .. budget, from, '+', 'BYLEX', 'LIMIT', 0, limit))
end, { 'no-writes' })

ff.register('attach', function(_, args)
  local c = ff.open(args)
  for i = 1, #c.request do
    local item = c.request[i]
    local tag, listed, unlisted, gone = item[@attach.tag], item[@attach.listed], item[@attach.unlisted], item[@attach.gone]
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
