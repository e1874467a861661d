-- ff1_admit: all limits of an execution let it start together, or the first that does not says why.
-- request: @admitting; items are @admission, and what they ask @ask_limit
-- answers: {answer, changes}, ...; an answer is {'admitted', {gate, slot, entry}, ...},
--   {'closed', budget, dimension, used, limit}, {'rate', gate, rate, seconds, wait, jitter},
--   {'full', gate, cap}, or {'unreadable', what, id}, {'orphan', id, ancestor}
-- Nothing is written before every limit of the item was asked. What a dry item would take is kept from
-- the dry items behind it, so that one free place is not offered to a hundred.
--
-- ff1_restore: undo what items changed, the latest first: for a caller whose limits lie in several
-- slots, of which a later one refused.
-- request: {@restoring, ...}; changes as ff1_admit answered them, if it was asked to:
--   {'w', tag, limit, waiter before or false}
--   {'g', tag, gate, slot before or 0, its holder, took a slot, made an entry, end before, end after}

local function budgets_of(limits, tag)
  local states = limits.budgets
  states[tag] = states[tag] or ff.open_budgets(limits.c, tag)
  return states[tag]
end

local function gates_of(limits, tag)
  local states = limits.gates
  states[tag] = states[tag] or ff.open_gates(limits.c, tag)
  return states[tag]
end

local function remember(limits, changes, change)
  if limits.restorable then changes[#changes + 1] = change end
end

-- List a refused execution as a waiter, for twice the time after which it asks again by itself.
-- mirrors core.limits.gates.listed_until
local function list_waiting(limits, item, tag, limit, look_ms, cap, changes)
  if item[@admission.rank] == false then return end
  if limits.restorable then
    remember(limits, changes, { 'w', tag, limit, ff.waiter(tag, limit, item[@admission.execution_id]) })
  end
  limits.waited_at[limit] = true
  local ends_at = limits.c.now + $gates.LOOKS_LISTED * (look_ms > 1 and look_ms or 1)
  ff.list_waiter(tag, limit, item[@admission.execution_id], { item[@admission.rank], ends_at, item[@admission.rate], cap, item[@admission.grant_id] })
end

local function ask_budget(limits, item, ask, changes)
  local state = budgets_of(limits, ask[@ask_limit.tag])
  local chain, fault = ff.chain(state, sub(ask[@ask_limit.limit], 3))
  if not chain then return fault end
  for i = 1, #chain do
    local shut = ff.closed(chain[i])
    if shut then
      list_waiting(limits, item, ask[@ask_limit.tag], $gates.BUDGET .. chain[i].id, item[@admission.look_ms], 0, changes)
      return shut
    end
  end
end

-- Let an execution in at a gate, or say why not. What it has already it keeps.
-- mirrors core.limits.gates.enter
local function enter(limits, item, state, gate, cap, rate)
  local now, quota, promised = limits.c.now, gate.quota, item[@admission.dry] and limits.promised[gate.name]
  local slots = gate.slots + (promised and promised[1] or 0)
  local entries = gate.entries + (promised and promised[2] or 0)
  local slot = ff.gate_row(state, gate, 's', item[@admission.execution_id])
  local window = quota and quota[@q.window_seconds] * 1000 or 0
  local new_entry = rate > 0 and not ff.gate_row(state, gate, 'e', item[@admission.execution_id])
  if new_entry and entries >= rate then
    local wait = ff.oldest_at(state, gate, entries) + window - now
    return nil, { 'rate', gate.name, rate, quota[@q.window_seconds], wait > 0 and wait or 0, quota[@q.jitter_ms] }
  end
  if cap > 0 and not slot and slots >= cap then return nil, { 'full', gate.name, cap } end
  local ends_at = now + item[@admission.hold_ms]
  if slot and slot > ends_at then ends_at = slot end
  local ends = cap > 0 and ends_at or 0
  if new_entry and now + window > ends then ends = now + window end
  return {
    state = state, gate = gate, slot = cap > 0 and ends_at, before = slot or 0,
    new_slot = cap > 0 and not slot, new_entry = new_entry, ends = ends,
  }
end

-- mirrors core.limits.gates.entry_request
local function ask_gate(limits, item, ask, passed, changes)
  local tag, name, cap, rate = ask[@ask_limit.tag], ask[@ask_limit.limit], ask[@ask_limit.cap], 0
  local state = gates_of(limits, tag)
  local gate, fault = ff.gate(state, name)
  if fault then return fault end
  if not gate then
    if not ff.is_key_gate(name) then return nil end
    gate = ff.fresh_gate(name)
  end
  if gate.quota then
    cap = gate.quota[@q.max_concurrent]
    rate = item[@admission.rate] == 1 and gate.quota[@q.max_requests_per_window] or 0
  end
  if cap == 0 and rate == 0 then return nil end
  local pass, denied = enter(limits, item, state, gate, cap, rate)
  if denied then
    local look_ms = denied[1] == 'rate' and denied[5] + denied[6] or item[@admission.look_ms]
    list_waiting(limits, item, tag, name, look_ms, ask[@ask_limit.cap], changes)
    return denied
  end
  if not passed[name] then passed[#passed + 1] = name end
  passed[name] = pass
end

local function take(limits, item, pass, changes)
  local state, gate, execution = pass.state, pass.gate, item[@admission.execution_id]
  if limits.restorable then
    local holder = pass.before > 0 and ff.holder(state, gate, 's', execution) or ''
    remember(limits, changes, {
      'g', state.tag, gate.name, pass.before, holder, pass.slot and true or false, pass.new_entry, gate.ends,
      pass.ends,
    })
  end
  ff.put_gate_rows(state, gate, execution, item[@admission.holder], pass.slot, pass.new_entry and limits.c.now)
  if pass.new_slot then gate.slots = gate.slots + 1 end
  if pass.new_entry then gate.entries = gate.entries + 1 end
  ff.keep_gate(state, gate, pass.ends)
end

local function promise(limits, name, pass)
  local promised = limits.promised[name] or { 0, 0 }
  limits.promised[name] = promised
  if pass.new_slot then promised[1] = promised[1] + 1 end
  if pass.new_entry then promised[2] = promised[2] + 1 end
end

-- Whether anybody waits at a limit, looked up once per call.
local function has_waiters(limits, tag, limit)
  local found = limits.waited_at[limit]
  if found == nil then
    found = ff.has_waiters(tag, limit)
    limits.waited_at[limit] = found
  end
  return found
end

local function unlist(limits, item, changes)
  for i = 1, #item[@admission.asks] do
    local tag, limit = item[@admission.asks][i][@ask_limit.tag], item[@admission.asks][i][@ask_limit.limit]
    if has_waiters(limits, tag, limit) then
      local listed = limits.restorable and ff.waiter(tag, limit, item[@admission.execution_id])
      if listed then remember(limits, changes, { 'w', tag, limit, listed }) end
      ff.unlist_waiter(tag, limit, item[@admission.execution_id])
    end
  end
end

local function admit(limits, item)
  local passed, changes, asks = {}, {}, item[@admission.asks]
  for i = 1, #asks do
    local denied
    if sub(asks[i][@ask_limit.limit], 1, 2) == $gates.BUDGET then
      denied = ask_budget(limits, item, asks[i], changes)
    else
      denied = ask_gate(limits, item, asks[i], passed, changes)
    end
    if denied then return { denied, changes } end
  end
  local answer = { 'admitted' }
  for i = 1, #passed do
    local pass = passed[passed[i]]
    if item[@admission.dry] then promise(limits, passed[i], pass) else take(limits, item, pass, changes) end
    if pass.new_slot or pass.new_entry then answer[#answer + 1] = { passed[i], pass.new_slot, pass.new_entry } end
  end
  unlist(limits, item, changes)
  return { answer, changes }
end

local function trim_all(limits, items)
  for i = 1, #items do
    local asks = items[i][@admission.asks]
    for j = 1, #asks do
      local tag, limit = asks[j][@ask_limit.tag], asks[j][@ask_limit.limit]
      if sub(limit, 1, 2) == $gates.BUDGET then
        ff.trim_reservations(budgets_of(limits, tag), sub(limit, 3))
      else
        ff.gate(gates_of(limits, tag), limit)
      end
    end
  end
end

ff.register('admit', function(_, args)
  local c = ff.open(args)
  local items, promised, restorable = c.request[@admitting.items], c.request[@admitting.promised], c.request[@admitting.restorable]
  local limits = { c = c, restorable = restorable, budgets = {}, gates = {}, promised = {}, waited_at = {} }
  for i = 1, #promised do limits.promised[promised[i][1]] = { promised[i][2], promised[i][3] } end
  trim_all(limits, items)
  local answers = ff.each(limits, items, admit)
  for _, state in pairs(limits.budgets) do ff.write_budgets(state) end
  for _, state in pairs(limits.gates) do ff.write_gates(state) end
  return ff.close(c, answers)
end)

local function restore_gate(c, execution, holder, change)
  local state = ff.open_gates(c, change[2])
  local gate = ff.stored_gate(state, change[3])
  if not gate then return end
  if change[6] and ff.holder(state, gate, 's', execution) == holder then
    ff.drop_gate_row(state, gate, 's', execution, holder)
    if change[4] > 0 then ff.put_gate_rows(state, gate, execution, change[5], change[4]) end
  end
  if change[7] then ff.drop_gate_row(state, gate, 'e', execution, holder) end
  if gate.ends == change[9] then
    -- Others may be in by now that end as late.
    local ends = ff.last_end(state, gate)
    if change[8] > ends then ends = change[8] end
    if ends > 0 then
      call('ZADD', $key.gate_ends .. change[2], ends, change[3])
    else
      call('ZREM', $key.gate_ends .. change[2], change[3])
    end
  end
end

local function restore(c, item)
  local execution, holder, changes = item[@restoring.execution_id], item[@restoring.holder], item[@restoring.changes]
  for i = #changes, 1, -1 do
    local change = changes[i]
    if change[1] == 'g' then
      restore_gate(c, execution, holder, change)
    elseif not change[4] then
      ff.unlist_waiter(change[2], change[3], execution)
    else
      ff.list_waiter(change[2], change[3], execution, change[4])
    end
  end
  return true
end

ff.register('restore', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, restore))
end)
