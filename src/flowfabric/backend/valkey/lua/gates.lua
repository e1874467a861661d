-- Gates of a batch: quotas and concurrency keys, counted without what has ended.
--
-- Keys, T being the tag of a quota partition and `gate` a name (q:<quota> or k:<namespace>:<key>):
--   ff:q:T:<gate>    string  packed quota {window in seconds, rate, cap, jitter, created at}; of quotas only
--   ff:qt:T          zset    gates by the instant their last slot or entry ends
--   ff:qs:T:<gate>   zset    slots: executions by the end of their slot
--   ff:qe:T:<gate>   zset    window: executions by the instant they started
--   ff:qh:T:<gate>   hash    holders: s<execution> of the slot, e<execution> of the entry
--
-- A key gate exists while it is among ff:qt, a quota while its policy does. Counts are those of the
-- sorted sets.

local WINDOW, RATE, CAP, JITTER = 1, 2, 3, 4
local MOST_ENDED = 1000
local MOST_GATES = 1000

local gates = {}

-- `writes` is false for a read: what has ended is then not counted but not dropped.
function gates.open(tag, now, writes)
  return { tag = tag, now = now, writes = writes, gates = {}, touched = {} }
end

local function key_of(state, kind, name)
  return 'ff:q' .. kind .. ':' .. state.tag .. ':' .. name
end

-- A gate as stored, nothing dropped: {name =, quota =, slots =, entries =, ends =}, or nil.
function gates.stored(state, name)
  local quota
  if string.sub(name, 1, 1) == 'q' then
    local body = call('GET', 'ff:q:' .. state.tag .. ':' .. name)
    if not body then
      return nil
    end
    local readable, found = pcall(unpacked, body)
    if not readable or type(found) ~= 'table' or #found < 5 then
      return nil, { 'unreadable', name }
    end
    quota = found
  end
  local ends = tonumber(call('ZSCORE', 'ff:qt:' .. state.tag, name) or 0)
  if ends == 0 and not quota then
    return nil
  end
  local gate = { name = name, quota = quota, slots = 0, entries = 0, ends = ends }
  if ends > 0 then
    gate.slots = call('ZCARD', key_of(state, 's', name))
    gate.entries = quota and call('ZCARD', key_of(state, 'e', name)) or 0
  end
  return gate
end

-- Drop the first of a sorted set up to an instant, a thousand at most; how many that are.
local function drop_upto(state, name, kind, upto)
  local key = key_of(state, kind, name)
  local ended = call('ZRANGEBYSCORE', key, '-inf', upto, 'LIMIT', 0, MOST_ENDED)
  if state.writes then
    local holders = key_of(state, 'h', name)
    for _, execution in ipairs(ended) do
      call('ZREM', key, execution)
      call('HDEL', holders, kind .. execution)
    end
  end
  return #ended
end

local function trim(state, gate)
  local slots = gate.slots > 0 and drop_upto(state, gate.name, 's', state.now) or 0
  local entries = 0
  if gate.entries > 0 then
    entries = drop_upto(state, gate.name, 'e', state.now - gate.quota[WINDOW] * 1000)
  end
  gate.slots = gate.slots - slots
  gate.entries = gate.entries - entries
  gate.ended_entries = entries
  gate.relieved = slots + entries > 0
end

-- The gate as this batch sees it; what ended was dropped when it was first asked for. nil without an
-- error when nothing was ever counted or defined under this name.
function gates.gate(state, name)
  local known = state.gates[name]
  if known == nil then
    local gate, fault = gates.stored(state, name)
    if fault then
      return nil, fault
    end
    if gate then
      trim(state, gate)
    end
    known = gate or false
    state.gates[name] = known
  end
  return known or nil
end

-- A key's gate that is not there yet.
function gates.fresh(state, name)
  local gate = { name = name, slots = 0, entries = 0, ends = 0 }
  state.gates[name] = gate
  return gate
end

function gates.keep_until(state, gate, ends)
  if ends > gate.ends then
    gate.ends = ends
    state.touched[gate.name] = gate
  end
end

function gates.flush(state)
  for name, gate in pairs(state.touched) do
    call('ZADD', 'ff:qt:' .. state.tag, gate.ends, name)
  end
  state.touched = {}
end

-- When the oldest entry of a full window was made.
function gates.oldest_at(state, gate)
  local quota = gate.quota
  if not quota or quota[RATE] == 0 or gate.entries < quota[RATE] then
    return 0
  end
  -- A read has not dropped what ended before it.
  local place = state.writes and 0 or gate.ended_entries
  local first = call('ZRANGE', key_of(state, 'e', gate.name), place, place, 'WITHSCORES')
  return tonumber(first[2] or state.now)
end

function gates.slot_end(state, gate, execution)
  local score = gate.slots > 0 and call('ZSCORE', key_of(state, 's', gate.name), execution)
  return score and tonumber(score)
end

function gates.has_entry(state, gate, execution)
  return gate.entries > 0 and call('ZSCORE', key_of(state, 'e', gate.name), execution) ~= false
end

function gates.holder(state, gate, kind, execution)
  return call('HGET', key_of(state, 'h', gate.name), kind .. execution) or ''
end

function gates.put(state, gate, kind, execution, score, holder)
  call('ZADD', key_of(state, kind, gate.name), score, execution)
  call('HSET', key_of(state, 'h', gate.name), kind .. execution, holder)
end

-- Give back a slot or an entry, if this holder has it (or none is named); 1 or 0.
function gates.give_back(state, gate, kind, execution, holder)
  local key = key_of(state, kind, gate.name)
  if not call('ZSCORE', key, execution) then
    return 0
  end
  if holder ~= '' and gates.holder(state, gate, kind, execution) ~= holder then
    return 0
  end
  call('ZREM', key, execution)
  call('HDEL', key_of(state, 'h', gate.name), kind .. execution)
  return 1
end

local function fits(quota, waiter, slots, entries)
  if not quota then
    return slots < waiter[4]
  end
  if quota[CAP] > 0 and slots >= quota[CAP] then
    return false
  end
  return quota[RATE] == 0 or waiter[3] == 0 or entries < quota[RATE]
end

-- The best waiters that fit in now, one per free slot and entry, as execution, grant; they and those
-- no longer waiting are taken off the list.
function gates.woken(state, gate)
  local fitting, slots, entries = {}, gate.slots, gate.entries
  for _, one in ipairs(waiters.first(state.tag, gate.name, waiters.MOST_LOOKS)) do
    local waiter = one[2]
    if waiter[2] <= state.now then
      waiters.drop(state.tag, gate.name, one[1])
    elseif fits(gate.quota, waiter, slots, entries) then
      slots = slots + 1
      entries = entries + waiter[3]
      if #fitting < waiters.MOST_WOKEN then
        fitting[#fitting + 1] = one
      end
    end
  end
  local told = {}
  waiters.tell(state.tag, gate.name, fitting, state.now, told)
  return told
end
