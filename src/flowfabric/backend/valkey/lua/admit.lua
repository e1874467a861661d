-- Admission: all limits of an execution let it start together, or the first that does not says why.
--
-- An item is {execution, asks, holder, hold ms, rank, needs rate (1 or 0), look ms, grant, dry (1 or 0)};
-- an ask {tag, limit name, cap}, the name beginning with b, q or k. Rank is '' for one that is not to
-- be listed. Nothing is written before every limit of the item was asked.
--
-- Where limits of one item lie in several slots the caller asks slot by slot and takes back what it
-- got when a later slot denies. For that an item's answer carries what it changed, as an opaque
-- array `restore` understands: lists of waiters as they were, and gates as they were.

-- The state of a batch: budgets and gates by tag, and what dry items were promised.
local function open_limits(now, writes)
  return { now = now, writes = writes, budgets = {}, gates = {}, promised = {} }
end

local function budgets_at(limits, tag)
  local state = limits.budgets[tag]
  if not state then
    state = budgets.open(tag, limits.now, limits.writes)
    limits.budgets[tag] = state
  end
  return state
end

local function gates_at(limits, tag)
  local state = limits.gates[tag]
  if not state then
    state = gates.open(tag, limits.now, limits.writes)
    limits.gates[tag] = state
  end
  return state
end

local function flush_limits(limits)
  for _, state in pairs(limits.budgets) do
    budgets.flush(state)
  end
  for _, state in pairs(limits.gates) do
    gates.flush(state)
  end
end

-- List who was turned away, for twice the time after which it looks again by itself.
local function line_up(limits, item, tag, limit, look_ms, cap, undo)
  if item[5] == '' then
    return
  end
  undo[#undo + 1] = { 'w', tag, limit, waiters.found(tag, limit, item[1]) }
  local ends_at = limits.now + 2 * math.max(1, look_ms)
  waiters.put(tag, limit, item[1], pack({ item[5], ends_at, item[6], cap, item[8] }))
end

local function ask_budget(limits, item, ask, undo)
  local chain, fault = budgets.chain(budgets_at(limits, ask[1]), string.sub(ask[2], 3))
  for _, level in ipairs(chain or {}) do
    local shut = budgets.closed(level)
    if shut then
      line_up(limits, item, ask[1], 'b:' .. level.id, item[7], 0, undo)
      return shut
    end
  end
  return fault
end

-- Let an execution in at a gate, or say why not: {slot until or 0, new slot, new entry, ends}, or nil
-- and the denial. What it has already it keeps and need not get again.
local function enter(limits, item, state, gate, cap, rate)
  local quota, slots, entries = gate.quota, gate.slots, gate.entries
  local promised = item[9] == 1 and limits.promised[gate.name]
  if promised then
    slots, entries = slots + promised[1], entries + promised[2]
  end
  local slot = gates.slot_end(state, gate, item[1])
  local new_entry = rate and not gates.has_entry(state, gate, item[1])
  local new_slot = cap > 0 and not slot
  if new_entry and entries >= quota[RATE] then
    local oldest = gates.oldest_at(state, gate)
    local wait = math.max(0, oldest + quota[WINDOW] * 1000 - limits.now)
    return nil, { 'rate', gate.name, quota[RATE], quota[WINDOW], wait, quota[JITTER] }
  end
  if new_slot and slots >= cap then
    return nil, { 'full', gate.name, cap }
  end
  local ends_at = math.max(limits.now + item[4], slot or 0)
  return {
    gate = gate,
    state = state,
    slot = cap > 0 and ends_at or 0,
    old_slot = slot or 0,
    new_slot = new_slot,
    new_entry = new_entry,
    ends = math.max(cap > 0 and ends_at or 0, new_entry and limits.now + quota[WINDOW] * 1000 or 0),
  }
end

local function ask_gate(limits, item, ask, passed, undo)
  local state = gates_at(limits, ask[1])
  local gate, fault = gates.gate(state, ask[2])
  if fault then
    return fault
  end
  local is_key = string.sub(ask[2], 1, 1) == 'k'
  if not gate then
    if not is_key then
      return nil
    end
    gate = { name = ask[2], slots = 0, entries = 0, ends = 0 }
  end
  local cap, rate = ask[3], false
  if gate.quota then
    cap, rate = gate.quota[CAP], item[6] == 1 and gate.quota[RATE] > 0
  end
  if cap == 0 and not rate then
    return nil
  end
  local pass, denied = enter(limits, item, state, gate, cap, rate)
  if pass then
    if not passed[gate.name] then
      passed[#passed + 1] = gate.name
    end
    passed[gate.name] = pass
    return nil
  end
  local look_ms = denied[1] == 'rate' and denied[5] + denied[6] or item[7]
  line_up(limits, item, ask[1], ask[2], look_ms, is_key and ask[3] or 0, undo)
  return denied
end

local function take(limits, item, pass, undo)
  local state, gate, execution = pass.state, pass.gate, item[1]
  undo[#undo + 1] = {
    'g', state.tag, gate.name, pass.old_slot,
    pass.old_slot > 0 and gates.holder(state, gate, 's', execution) or '',
    pass.slot > 0 and 1 or 0, pass.new_entry and 1 or 0, gate.ends, math.max(gate.ends, pass.ends),
  }
  state.gates[gate.name] = gate
  if pass.slot > 0 then
    gates.put(state, gate, 's', execution, pass.slot, item[3])
    gate.slots = gate.slots + (pass.new_slot and 1 or 0)
  end
  if pass.new_entry then
    gates.put(state, gate, 'e', execution, limits.now, item[3])
    gate.entries = gate.entries + 1
  end
  gates.keep_until(state, gate, pass.ends)
end

local function promise(limits, pass)
  local name = pass.gate.name
  local promised = limits.promised[name] or { 0, 0 }
  promised[1] = promised[1] + (pass.new_slot and 1 or 0)
  promised[2] = promised[2] + (pass.new_entry and 1 or 0)
  limits.promised[name] = promised
end

local function admit(limits, item)
  local passed, undo = {}, {}
  for _, ask in ipairs(item[2]) do
    local is_budget = string.sub(ask[2], 1, 1) == 'b'
    local denied
    if is_budget then
      denied = ask_budget(limits, item, ask, undo)
    else
      denied = ask_gate(limits, item, ask, passed, undo)
    end
    if denied then
      return denied, undo
    end
  end
  local obtained = {}
  for _, name in ipairs(passed) do
    local pass = passed[name]
    if item[9] == 1 then
      promise(limits, pass)
    else
      take(limits, item, pass, undo)
    end
    if pass.new_slot or pass.new_entry then
      obtained[#obtained + 1] = { name, pass.new_slot and 1 or 0, pass.new_entry and 1 or 0 }
    end
  end
  for _, ask in ipairs(item[2]) do
    local listed = limits.restorable and waiters.found(ask[1], ask[2], item[1]) or ''
    if listed ~= '' then
      undo[#undo + 1] = { 'w', ask[1], ask[2], listed }
    end
    waiters.drop(ask[1], ask[2], item[1])
  end
  return { 'admitted', obtained }, undo
end
