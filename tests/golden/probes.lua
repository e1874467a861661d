-- Probes: each calls one mirroring function with arguments that come packed, and shows what it came to.
-- They stand behind the files of the library in a rendering that only tests load.

local probed = ff.probed
local probes = {}

local function record(row) return setmetatable(row, RECORD_META) end

-- A context like that of any call, at a given instant.
local function open(now)
  return ff.open({ pack({ now, false, {} }) })
end

local function store(id, row)
  call('HSET', $key.execution .. id, $field.record, pack(row), $field.static, '[]')
end

local function stored(id)
  return ff.decode(call('HGET', $key.execution .. id, $field.record))
end

local function groups_of(c)
  local found = {}
  for _, log in pairs(c.logs) do
    for i = 1, #log.groups do found[#found + 1] = log.groups[i] end
  end
  return found
end

local function ended_of(id, index)
  local row = call('HGET', $key.execution .. id, $field.attempt .. index)
  return row and unpack_message(row) or false
end

-- ---- new executions

-- {id, shape, instant of the last record of its fairness key or 0}
function probes.initial_record(now, a)
  local c, tag = open(now), ff.tag_of(a[1])
  local row = record(a[2][@shape.record])
  call('DEL', ff.fairness(tag, row[@namespace]))
  if a[3] ~= 0 then
    call('HSET', ff.fairness(tag, row[@namespace]), row[@lane] .. ',' .. a[2][@shape.fairness_key], a[3])
  end
  return probed['create.initial_record'](c, tag, a[2])
end

-- {tag, row, key, id, window, when it is asked again}: whom the key stands for then
function probes.known_execution(now, a)
  local c = open(now)
  local _, name = probed['create.known_id'](c, a[1], record(a[2]), a[3])
  call('DEL', name)
  if a[5] > 0 then probed['create.remember_key'](c, name, a[4], a[5]) end
  local known = probed['create.known_id'](open(a[6]), a[1], record(a[2]), a[3])
  return { name, known or '' }
end

-- ---- records

function probes.guard_holds(now, a)
  return ff.fits(a[1], record(a[2]), now)
end

function probes.transition(now, a)
  local after, ended = ff.transition(record(a[2]), a[1], now)
  return { after, ended or false }
end

function probes.is_move(_, a)
  return ff.bad_move({ '', a[1], {}, { @state, a[3] } }, record({ [@state] = a[2] })) == false
end

-- {event, id, holder, record}: the groups of the log, and whether the entry is kept beside the record
function probes.entry_of(now, a)
  local c = open(now)
  call('DEL', ff.history(a[2]))
  ff.emit(c, a[2], a[1], record(a[3]), record(a[4]))
  return { groups_of(c), call('LLEN', ff.history(a[2])) }
end

function probes.is_ending(_, a) return probed['events.is_ending'](a[1]) and true or false end

-- {id, before or false, after or false}: what changes in sorted sets and in counters
function probes.reindex(now, a)
  local c, sets, counts = open(now), {}, {}
  ff.reindex(c, a[1], a[2] and record(a[2]) or nil, a[3] and record(a[3]) or nil)
  for i = 1, #c.changed_sets do
    local set = c.changed_sets[i]
    sets[i] = { set.key, { unpack(set.gone, 1, set.left) }, { unpack(set.came, 1, set.come) } }
  end
  for i = 1, #c.counted do
    for bucket, by in pairs(c.counted[i].counts) do counts[#counts + 1] = { bucket, by } end
  end
  return { sets, counts }
end

-- {id, row, terms}
function probes.lease(now, a)
  local c, before = open(now), record(a[2])
  call('DEL', $key.execution .. a[1])
  local after = ff.lease(c, a[1], before, a[3])
  return { after, ended_of(a[1], before[@attempt_index]), groups_of(c) }
end

-- {id, row, worker, instance, grant, length}
function probes.grant(now, a)
  ff.reserve(open(now), a[1], record(a[2]), a[3], a[4], a[5], a[6])
  return stored(a[1])
end

function probes.takes(_, a)
  return probed['queues.ff.takes']({ [@queues.sets] = a[2], [@queues.kinds] = a[3] }, a[1])
end

function probes.is_exhausted(_, a) return probed['claim.is_exhausted'](record(a[1])) end
function probes.grant_kind(_, a) return probed['lease.grant_kind'](record(a[1])) end
function probes.paused_by_suspension(_, a) return probed['claim.paused_by'](record(a[1])) end

-- {row, grant, worker, instance}
function probes.may_lease(now, a)
  return probed['claim.may_lease'](record(a[1]), now, {
    [@named_claim.grant_id] = a[2], [@named_claim.worker_id] = a[3], [@named_claim.worker_instance_id] = a[4],
  })
end

function probes.put_off(now, a)
  probed['purge.put_off'](open(now), a[1], record(a[2]))
  return stored(a[1])
end

-- {id, row, tag, flow id, flow or false}
function probes.judge_purge(now, a)
  local c = open(now)
  if a[5] then ff.put_flow(c, a[3], a[4], a[5]) end
  store(a[1], a[2])
  return probed['purge.purge'](c, a[1])[1]
end

-- ---- flows; `a` is {tag, flow id, flow, ...}

local function flow_in(now, a)
  local c = open(now)
  ff.put_flow(c, a[1], a[2], a[3])
  return c
end

local function flow_after(c, a)
  return ff.flow(c, a[1], a[2])
end

function probes.public_state(_, a) return probed['members.place_of'](a[1], a[2]) end
function probes.live_members(_, a) return probed['members.live_members'](a[3]) end
function probes.states_to_cancel(_, a) return ff.states_to_cancel(a[3]) or {} end
function probes.members_to_cancel(_, a) return ff.members_to_cancel(a[3]) end
function probes.has_work(_, a) return ff.has_work(a[3]) end
function probes.flow_due_at(now, a) return ff.flow_due_at(a[3], now) end
function probes.is_over(_, a) return probed['members.is_over'](a[3]) end

function probes.flow_purge_at(_, a)
  local _, purge_at = probed['graph.listed'](a[3])
  return purge_at
end

function probes.keep_flow(now, a)
  local c = flow_in(now, a)
  ff.keep_flow(c, a[1], a[2], a[3])
  return flow_after(c, a)
end

-- {…, members, edges}
function probes.grown(_, a)
  ff.grow_flow(a[3], a[4], a[5])
  return a[3]
end

-- {…, row before or false, row after}
function probes.move_member(now, a)
  local c = flow_in(now, a)
  ff.member_moved(c, a[1], '', a[4] and record(a[4]) or nil, record(a[5]))
  return flow_after(c, a)
end

function probes.finish_flow(now, a)
  local c = flow_in(now, a)
  ff.finish_flow(c, a[1], a[2])
  return { flow_after(c, a), groups_of(c) }
end

function probes.go_on_with(now, a)
  local c = flow_in(now, a)
  local answer = probed['flows.go_on'](c, { a[1], a[2] })
  return { flow_after(c, a), answer[2] }
end

-- {…, row}: whether the record may join
function probes.explain_create(now, a)
  return ff.join_flow(flow_in(now, a), a[1], record(a[4])) == nil
end

-- {…, row}
function probes.is_cancelled_by_flow(now, a)
  return ff.is_cancelled_by_flow(flow_in(now, a), a[1], record(a[4]))
end

-- ---- groups and edges

function probes.judge(_, a) return ff.judge(a[1]) end
function probes.resolved_edges(_, a) return ff.resolved_edges(a[1]) end
function probes.resolve_edge(_, a) return ff.is_satisfied(a[1], a[2]) end
function probes.end_counts(_, a) return ff.end_counts(a[1], record(a[2])) or false end

-- {group, edge, outcome, target}
function probes.count_outcome(_, a)
  local overfull = ff.overfull(a[1], a[4])
  if overfull then return overfull.answer end
  ff.count_outcome(a[1], a[2], a[3])
  return a[1]
end

-- ---- budgets; `a` is {tag, {id, budget, …}, …}

local function chain_of(now, a)
  local c = open(now)
  local state, chain = ff.open_budgets(c, a[1]), {}
  for i = 1, #a[2], 2 do
    local level = { id = a[2][i], budget = a[2][i + 1], due = 0 }
    chain[#chain + 1], state.levels[level.id] = level, level
  end
  return state, chain
end

local function budgets_after(chain)
  local found = {}
  for i = 1, #chain do found[2 * i - 1], found[2 * i] = chain[i].id, chain[i].budget end
  return found
end

-- {…, amounts, held}
function probes.refusal(now, a)
  local _, chain = chain_of(now, a)
  local _, hard = ff.refusal(chain, a[3], a[4])
  return hard or false
end

-- {…, dimension}
function probes.breached(now, a)
  local state, chain = chain_of(now, a)
  ff.breached(state, chain[1], a[3])
  return budgets_after(chain)
end

-- {…, place, amounts}
function probes.plus(now, a)
  local _, chain = chain_of(now, a)
  return ff.overflow(chain, @b.used, a[3]) or false
end

function probes.closed(now, a)
  local _, chain = chain_of(now, a)
  for i = 1, #chain do
    local shut = ff.closed(chain[i])
    if shut then return shut end
  end
  return false
end

-- {…, amounts}
function probes.check_dimensions(now, a)
  local _, chain = chain_of(now, a)
  return ff.unknown_dimension(chain[1], a[3]) or false
end

-- {…, amounts}
function probes.free(now, a)
  local state, chain = chain_of(now, a)
  ff.free(state, chain, a[3])
  return budgets_after(chain)
end

local function ledger_key(a, execution)
  return $key.ledgers .. a[1] .. ':' .. execution
end

-- {…, amounts, execution, ledger before or false}
function probes.spend(now, a)
  local state, chain = chain_of(now, a)
  local key = ledger_key(a, a[4])
  call('DEL', key)
  if a[5] then call('HSET', key, chain[1].id, pack(a[5])) end
  local spent = probed['spend.count'](state, chain, a[3], a[4])
  return { budgets_after(chain), spent[2], unpack_message(call('HGET', key, chain[1].id)), groups_of(state.c) }
end

-- {…, execution, ledger}
function probes.taken_back(now, a)
  local state, chain = chain_of(now, a)
  call('HSET', ledger_key(a, a[3]), chain[1].id, pack(a[4]))
  probed['spend.acts.release'](state, {
    [@release.budget_id] = chain[1].id, [@release.execution_id] = a[3],
  })
  return budgets_after(chain)
end

-- {…, only if due}
function probes.reset(now, a)
  local state, chain = chain_of(now, a)
  local freed = probed['spend.acts.reset'](state, {
    [@reset.budget_id] = chain[1].id, [@reset.only_if_due] = a[3],
  })
  return { budgets_after(chain), freed[3] }
end

-- {…, amounts, reservation}
function probes.set_aside(now, a)
  local state, chain = chain_of(now, a)
  call('DEL', $key.reservations .. a[1] .. ':' .. chain[1].id)
  local answer = probed['spend.acts.reserve'](state, {
    [@reserve.budget_id] = chain[1].id, [@reserve.amounts] = a[3], [@reserve.reservation_id] = a[4],
    [@reserve.execution_id] = '', [@reserve.ttl_ms] = 1000,
  })
  return { budgets_after(chain), answer[1] }
end

-- ---- gates

-- {quota or false, waiter, slots, entries}
function probes._fits(_, a)
  return probed['gates.fits'](a[1] or nil, a[2], a[3], a[4])
end

local function gate_in(now, a)
  local c = open(now)
  local state = ff.open_gates(c, a[1])
  local gate = { name = a[2], quota = a[3] or nil, slots = a[4], entries = a[5], ends = 0, passed = 0 }
  for _, key in pairs({ $key.slots, $key.entries, $key.holders, $key.waiter_ranks, $key.waiters }) do
    call('DEL', key .. a[1] .. ':' .. a[2])
  end
  return c, state, gate
end

-- {tag, gate, quota or false, slots, entries, {execution, slot end or 0, entry or 0, …}, who enters, holder,
-- hold ms, cap, rate}
function probes.enter(now, a)
  local c, state, gate = gate_in(now, a)
  for i = 1, #a[6], 3 do
    local slot, entry = a[6][i + 1], a[6][i + 2]
    ff.put_gate_rows(state, gate, a[6][i], 'holder', slot ~= 0 and slot, entry ~= 0 and entry)
  end
  local item = { [@admission.execution_id] = a[7], [@admission.holder] = a[8], [@admission.hold_ms] = a[9] }
  local pass, denied = probed['admit.enter']({ c = c, promised = {} }, item, state, gate, a[10], a[11])
  return denied or { 'passed', pass.slot or 0, pass.new_slot, pass.new_entry, pass.ends }
end

-- {tag, gate, quota or false, slots, entries, {execution, waiter, …}}: who is told, and who is left
function probes.choose(now, a)
  local _, state, gate = gate_in(now, a)
  for i = 1, #a[6], 2 do ff.list_waiter(a[1], a[2], a[6][i], a[6][i + 1]) end
  local told = ff.admissible_at_gate(state, gate)
  return { told, call('ZRANGE', $key.waiter_ranks .. a[1] .. ':' .. a[2], 0, -1) }
end

-- {tag, gate, look ms}: until when a waiter is listed
function probes.listed_until(now, a)
  local item = {
    [@admission.execution_id] = 'one', [@admission.rank] = 1, [@admission.rate] = 1, [@admission.grant_id] = '',
  }
  probed['admit.list_waiting']({ c = open(now), waited_at = {} }, item, a[1], a[2], a[3], 0, {})
  return ff.waiter(a[1], a[2], 'one')[2]
end

local function run(item)
  return probes[item[1]](item[2], item[3])
end

ff.register('probe', function(_, args)
  local c = ff.open(args)
  local answers = {}
  for i = 1, #c.request do
    local ok, answer = pcall(run, c.request[i])
    answers[i] = { ok, ok and answer or type(answer) == 'table' and (answer.err or 'raised') or answer }
    if ok and answer == nil then answers[i][2] = false end
  end
  return pack(answers)
end)
