-- The gates of a call: quotas and concurrency keys, counted without what has ended.
--
-- keys    ff:q:T:<gate>    string  packed quota; concurrency keys have none
--         ff:qt:T          zset    gates by the instant the last of their slots and entries ends
--         ff:qs:T:<gate>   zset    slots: executions by the end of their slot
--         ff:qe:T:<gate>   zset    window: executions by the instant they started
--         ff:qh:T:<gate>   hash    holders: s<execution> of a slot, e<execution> of an entry
-- A gate is named q:<quota> or k:<namespace>:<key>. That of a key exists while it is in ff:qt. Here it
-- is {name =, quota =, slots =, entries =, ends =}.

-- Gates of one partition.
function ff.open_gates(c, tag)
  return { tag = tag, now = c.now, gates = {}, touched = {} }
end

-- Keys by what they have: slots, entries, and the holders of these.
local KEYS = { s = $key.slots, e = $key.entries, h = $key.holders }

local function key_of(state, kind, name)
  return KEYS[kind] .. state.tag .. ':' .. name
end

function ff.is_key_gate(name)
  return sub(name, 1, 2) == $gates.KEY
end

local function quota_of(state, name)
  local body = call('GET', $key.quota .. state.tag .. ':' .. name)
  if not body then return nil end
  local readable, quota = pcall(unpack_message, body)
  if not readable or type(quota) ~= 'table' or #quota < @q.created_at then
    return nil, { 'unreadable', 'quota', sub(name, 3) }
  end
  return quota
end

-- A gate with all that is stored of it, nil when nothing was ever counted or defined there.
function ff.stored_gate(state, name)
  local quota, fault
  if not ff.is_key_gate(name) then
    quota, fault = quota_of(state, name)
    if not quota then return nil, fault end
  end
  local ends = call('ZSCORE', $key.gate_ends .. state.tag, name)
  if not ends and not quota then return nil end
  local gate = { name = name, quota = quota, slots = 0, entries = 0, ends = tonumber(ends or 0) }
  if ends then
    gate.slots = call('ZCARD', key_of(state, 's', name))
    if quota then gate.entries = call('ZCARD', key_of(state, 'e', name)) end
  end
  return gate
end

-- Take a slot (kind s) or an entry (kind e) of an execution away.
function ff.delete_gate_row(tag, name, kind, execution)
  call('ZREM', KEYS[kind] .. tag .. ':' .. name, execution)
  call('HDEL', $key.holders .. tag .. ':' .. name, kind .. execution)
end

-- How many of a gate's slots or entries ended by an instant; they are dropped.
local function drop_upto(state, name, kind, upto)
  local key = key_of(state, kind, name)
  local ended = call('ZRANGEBYSCORE', key, '-inf', upto, 'LIMIT', 0, $gates.MOST_ENDED)
  for i = 1, #ended do ff.delete_gate_row(state.tag, name, kind, ended[i]) end
  return #ended
end

local function trim(state, gate)
  local slots, entries = 0, 0
  if gate.slots > 0 then slots = drop_upto(state, gate.name, 's', state.now) end
  if gate.entries > 0 then
    entries = drop_upto(state, gate.name, 'e', state.now - gate.quota[@q.window_seconds] * 1000)
  end
  gate.slots, gate.entries = gate.slots - slots, gate.entries - entries
  gate.relieved = slots + entries > 0
end

-- A gate as of now; what has ended is dropped when it is first asked for.
function ff.gate(state, name)
  local gate = state.gates[name]
  if gate then return gate end
  local fault
  gate, fault = ff.stored_gate(state, name)
  if gate then
    trim(state, gate)
    state.gates[name] = gate
  end
  return gate, fault
end

-- The gate of a concurrency key at which nothing was counted yet.
function ff.fresh_gate(name)
  return { name = name, slots = 0, entries = 0, ends = 0 }
end

function ff.write_gates(state)
  for name, gate in pairs(state.touched) do call('ZADD', $key.gate_ends .. state.tag, gate.ends, name) end
  state.touched = {}
end

-- Keep a gate, whose last slot or entry ends then or later.
function ff.keep_gate(state, gate, ends)
  state.gates[gate.name] = gate
  if ends > gate.ends then
    gate.ends = ends
    state.touched[gate.name] = gate
  end
end

-- When the oldest entry of a window was made that is full with so many.
function ff.oldest_at(state, gate, entries)
  local rate = gate.quota and gate.quota[@q.max_requests_per_window] or 0
  if rate == 0 or entries < rate then return 0 end
  local first = call('ZRANGE', key_of(state, 'e', gate.name), 0, 0, 'WITHSCORES')
  return tonumber(first[2] or state.now)
end

-- When the last slot or entry that is there ends; 0 when there is none.
function ff.last_end(state, gate)
  local slot = call('ZRANGE', key_of(state, 's', gate.name), 0, 0, 'REV', 'WITHSCORES')[2]
  local entry = call('ZRANGE', key_of(state, 'e', gate.name), 0, 0, 'REV', 'WITHSCORES')[2]
  local ends = tonumber(slot or 0)
  local window = entry and tonumber(entry) + gate.quota[@q.window_seconds] * 1000 or 0
  return window > ends and window or ends
end

-- The end of an execution's slot (kind s) or the instant of its entry (kind e).
function ff.gate_row(state, gate, kind, execution)
  local count = kind == 's' and gate.slots or gate.entries
  local score = count > 0 and call('ZSCORE', key_of(state, kind, gate.name), execution)
  return score and tonumber(score)
end

function ff.holder(state, gate, kind, execution)
  return call('HGET', key_of(state, 'h', gate.name), kind .. execution) or ''
end

-- Give a holder a slot that ends then, an entry of that instant, or both.
function ff.put_gate_rows(state, gate, execution, holder, slot_end, entry_at)
  local holders = key_of(state, 'h', gate.name)
  if slot_end then call('ZADD', key_of(state, 's', gate.name), slot_end, execution) end
  if entry_at then call('ZADD', key_of(state, 'e', gate.name), entry_at, execution) end
  if slot_end and entry_at then
    call('HSET', holders, 's' .. execution, holder, 'e' .. execution, holder)
  elseif slot_end or entry_at then
    call('HSET', holders, (slot_end and 's' or 'e') .. execution, holder)
  end
end

-- Take a slot or an entry away, if this holder has it or none is named; how many that were.
function ff.drop_gate_row(state, gate, kind, execution, holder)
  if not ff.gate_row(state, gate, kind, execution) then return 0 end
  if holder ~= '' and ff.holder(state, gate, kind, execution) ~= holder then return 0 end
  ff.delete_gate_row(state.tag, gate.name, kind, execution)
  return 1
end

-- mirrors core.limits.gates._fits
local function fits(quota, waiter, slots, entries)
  if not quota then return slots < waiter[4] end
  local cap, rate = quota[@q.max_concurrent], quota[@q.max_requests_per_window]
  if cap > 0 and slots >= cap then return false end
  return rate == 0 or waiter[3] == 0 or entries < rate
end

-- The best waiters that fit in now, one per free slot and entry; they, and those whose time is over,
-- are taken off the list.
-- mirrors core.limits.gates.choose
function ff.admissible_at_gate(state, gate)
  local chosen, slots, entries = {}, gate.slots, gate.entries
  local waiting = ff.first_waiters(state.tag, gate.name, $gates.MOST_LOOKS)
  for i = 1, #waiting do
    local waiter = waiting[i][2]
    if waiter[2] <= state.now then
      ff.unlist_waiter(state.tag, gate.name, waiting[i][1])
    elseif fits(gate.quota, waiter, slots, entries) then
      slots, entries = slots + 1, entries + waiter[3]
      if #chosen < $gates.MOST_ADMISSIBLE then chosen[#chosen + 1] = waiting[i] end
    end
  end
  local admissible = {}
  ff.take_waiters(state.tag, gate.name, chosen, state.now, admissible)
  return admissible
end
