-- ff1_spend: counting against budgets, and taking it back.
-- request: {@act, ...}
-- answers: {'spent', softs}, {'hard', ...}, {'again'}, {'reserved', until},
--   {'freed', admissible, done, next reset}; or what is wrong: {'missing', id},
--   {'dimension', name, budget, known names}, {'overflow', names ...}, {'orphan', id, ancestor},
--   {'unreadable', what, id}. `admissible` is {execution, grant, ...}.
-- An item is checked as a whole before it changes anything.

-- Log for the operators that a soft limit was passed.
local function warn(state, level, soft, execution)
  local budget = level.budget
  local namespace = budget[@b.namespace]
  local details = {
    'budget_id', soft[1], 'dimension', soft[2],
    'current_usage', string.format('%.0f', soft[3]), 'soft_limit', string.format('%.0f', soft[4]),
  }
  ff.log(state.c, state.tag, {
    state.now, namespace, $event.budget_soft_breach, $family.operator, '', '', '', details, '', execution, '', 0, '', $record.NO_ATTEMPT,
  })
end

-- Of a level after an amount was counted: {budget, dimension, used, limit, what to do}.
-- mirrors core.limits.budgets._first_soft
local function first_soft(level, amounts)
  local budget = level.budget
  for i = 1, #amounts, 2 do
    local name = amounts[i]
    local used, reserved = budget[@b.used][name], budget[@b.reserved][name] or 0
    local hard, soft = budget[@b.hard_limits][name] or 0, budget[@b.soft_limits][name] or 0
    if hard > 0 and used + reserved > hard and budget[@b.enforcement_mode] == $enforcement.advisory then
      return { level.id, name, used, hard, budget[@b.on_soft_limit] }
    end
    if soft > 0 and used > soft then return { level.id, name, used, soft, budget[@b.on_soft_limit] } end
  end
end

-- What one execution spent: a share per level, stamped with its reset count, because a share from
-- before a reset is worth nothing any more.
-- mirrors core.limits.budgets.entered, core.limits.budgets._share
local function enter_ledger(state, chain, amounts, execution)
  local key, own = $key.ledgers .. state.tag .. ':' .. execution, chain[1].id
  local body = call('HGET', key, own)
  local before = body and unpack_message(body) or {}
  local known, shares = {}, {}
  for i = 1, #before do known[before[i][1]] = before[i] end
  for i = 1, #chain do
    local share, resets = known[chain[i].id], chain[i].budget[@b.reset_count]
    local sums = share and share[2] == resets and share[3] or {}
    for j = 1, #amounts, 2 do sums[amounts[j]] = (sums[amounts[j]] or 0) + amounts[j + 1] end
    shares[i] = { chain[i].id, resets, sums }
  end
  call('HSET', key, own, pack(shares))
end

-- Add what no level refused, with all that follows: counters, warnings, ledger.
-- mirrors core.limits.budgets.spend
local function count(state, chain, amounts, execution)
  local softs = {}
  for i = 1, #chain do
    local level = chain[i]
    local budget = level.budget
    local used = budget[@b.used]
    for j = 1, #amounts, 2 do used[amounts[j]] = (used[amounts[j]] or 0) + amounts[j + 1] end
    local soft = first_soft(level, amounts)
    if soft then
      budget[@b.soft_breach_count] = budget[@b.soft_breach_count] + 1
      softs[#softs + 1] = soft
      if soft[5] == $on_soft_limit.warn then warn(state, level, soft, execution) end
    end
    ff.touch(state, level)
  end
  if execution ~= '' then enter_ledger(state, chain, amounts, execution) end
  return { 'spent', softs }
end

-- Why these amounts may not be counted at every level, nil when they may.
local function refused(state, chain, place, amounts, held)
  local fault = ff.unknown_dimension(chain[1], amounts)
  if fault then return fault end
  local level, hard = ff.refusal(chain, amounts, held)
  if level then
    ff.breached(state, level, hard[3])
    return hard
  end
  return ff.overflow(chain, place, amounts)
end

local acts = {}

function acts.spend(state, item)
  local id, amounts, key = item[@spend.budget_id], item[@spend.amounts], item[@spend.dedup_key]
  local mark = $key.spend_keys .. state.tag .. ':' .. id .. ':' .. key
  if key ~= '' and tonumber(call('GET', mark) or 0) > state.now then return { 'again' } end
  local chain, fault = ff.needed_chain(state, id)
  if not chain then return fault end
  local refusal = refused(state, chain, @b.used, amounts, {})
  if refusal then return refusal end
  if key ~= '' then
    call('SET', mark, string.format('%.0f', state.now + $asks.DEDUP_MS), 'PX', $asks.DEDUP_MS)
  end
  return count(state, chain, amounts, item[@spend.execution_id])
end

-- mirrors core.limits.budgets.taken_back, core.limits.budgets.minus
function acts.release(state, item)
  local chain, fault = ff.needed_chain(state, item[@release.budget_id])
  if not chain then return fault end
  local key = $key.ledgers .. state.tag .. ':' .. item[@release.execution_id]
  local body = call('HGET', key, item[@release.budget_id])
  if not body then return { 'freed', {}, true, 0 } end
  local ledger, shares, lowered = unpack_message(body), {}, {}
  for i = 1, #ledger do shares[ledger[i][1]] = ledger[i] end
  for i = 1, #chain do
    local share, used = shares[chain[i].id], chain[i].budget[@b.used]
    if share and share[2] == chain[i].budget[@b.reset_count] then
      for name, amount in pairs(share[3]) do
        if used[name] then used[name] = used[name] > amount and used[name] - amount or 0 end
      end
      ff.touch(state, chain[i])
      lowered[#lowered + 1] = chain[i]
    end
  end
  call('HDEL', key, item[@release.budget_id])
  return { 'freed', ff.admissible_at_budgets(state, lowered), true, 0 }
end

-- When the next period begins if one begins now; nil when only a due one may and none is.
-- mirrors core.limits.budgets.reset, core.limits.budgets.reset_if_due
local function next_reset(budget, only_if_due, now)
  local old, interval = budget[@b.next_reset_at], budget[@b.reset_interval_ms]
  if not only_if_due then return interval > 0 and now + interval or 0 end
  if old == 0 or old > now then return nil end
  -- Whole intervals from the old instant, so that resets stay on their schedule.
  return now - math.fmod(now - old, interval) + interval
end

-- mirrors core.limits.budgets._emptied
local function empty(state, level, next_at)
  local budget = level.budget
  local used = budget[@b.used]
  for name in pairs(used) do used[name] = 0 end
  budget[@b.reset_count] = budget[@b.reset_count] + 1
  budget[@b.last_reset_at], budget[@b.next_reset_at] = state.now, next_at
  budget[@b.last_breach_at], budget[@b.last_breach_dim] = 0, ''
  ff.touch(state, level)
end

function acts.reset(state, item)
  local chain, fault = ff.needed_chain(state, item[@reset.budget_id])
  if not chain then return fault end
  local level = chain[1]
  local budget = level.budget
  local next_at = next_reset(budget, item[@reset.only_if_due], state.now)
  if budget[@b.reservations_end_at] > 0 then
    -- The timer of a root also stands for the reservations of its tree, which were just looked at.
    local first = call('ZRANGE', $key.reservation_ends .. state.tag .. ':' .. level.id, 0, 0, 'WITHSCORES')
    budget[@b.reservations_end_at] = tonumber(first[2] or 0)
    state.touched[level.id] = level
  end
  if not next_at then return { 'freed', {}, false, budget[@b.next_reset_at] } end
  empty(state, level, next_at)
  return { 'freed', ff.admissible_at_budgets(state, { level }), true, next_at }
end

local function reservation_of(state, id, name)
  local body = call('HGET', $key.reservations .. state.tag .. ':' .. id, name)
  return body and unpack_message(body)
end

-- Keep a reservation, and have its tree looked at when it ends.
local function put_reservation(state, chain, name, reservation)
  local id, root, ends_at = chain[1].id, chain[#chain], reservation[3]
  call('HSET', $key.reservations .. state.tag .. ':' .. id, name, pack(reservation))
  call('ZADD', $key.reservation_ends .. state.tag .. ':' .. root.id, ends_at, id .. name)
  local first_end = root.budget[@b.reservations_end_at]
  if first_end == 0 or first_end > ends_at then
    root.budget[@b.reservations_end_at] = ends_at
    state.touched[root.id] = root
  end
end

-- mirrors core.limits.budgets.set_aside
function acts.reserve(state, item)
  local id, amounts, name = item[@reserve.budget_id], item[@reserve.amounts], item[@reserve.reservation_id]
  local chain, fault = ff.needed_chain(state, id)
  if not chain then return fault end
  if reservation_of(state, id, name) then return { 'again' } end
  local refusal = refused(state, chain, @b.reserved, amounts, {})
  if refusal then return refusal end
  local aside = {}
  for i = 1, #amounts, 2 do
    if amounts[i + 1] > 0 then aside[amounts[i]] = amounts[i + 1] end
  end
  for i = 1, #chain do
    local reserved = chain[i].budget[@b.reserved]
    for dimension, amount in pairs(aside) do
      reserved[dimension] = (reserved[dimension] or 0) + amount
    end
    ff.touch(state, chain[i])
  end
  local ends_at = state.now + item[@reserve.ttl_ms]
  put_reservation(state, chain, name, { chain[#chain].id, aside, ends_at, item[@reserve.execution_id], $reservation.open })
  return { 'reserved', ends_at }
end

-- Free what a reservation set aside and keep it for a day as a mark, so that a repeat is recognised.
local function finish_reservation(state, chain, name, reservation, word)
  local execution = reservation and reservation[4] or ''
  if reservation and next(reservation[2]) then ff.free(state, chain, reservation[2]) end
  put_reservation(state, chain, name, { chain[#chain].id, {}, state.now + $asks.DEDUP_MS, execution, word })
  return execution
end

-- A reservation that ended, was cancelled or never was sets nothing aside: what was spent still counts.
function acts.commit(state, item)
  local id, amounts, name = item[@commit.budget_id], item[@commit.amounts], item[@commit.reservation_id]
  local chain, fault = ff.needed_chain(state, id)
  if not chain then return fault end
  local reservation = reservation_of(state, id, name)
  if reservation and reservation[5] == $reservation.committed then return { 'again' } end
  local refusal = refused(state, chain, @b.used, amounts, reservation and reservation[2] or {})
  if refusal then return refusal end
  local execution = finish_reservation(state, chain, name, reservation, $reservation.committed)
  return count(state, chain, amounts, execution)
end

function acts.cancel(state, item)
  local chain, fault = ff.needed_chain(state, item[@cancel.budget_id])
  if not chain then return fault end
  local reservation = reservation_of(state, item[@cancel.budget_id], item[@cancel.reservation_id])
  if not reservation or reservation[5] ~= $reservation.open then return { 'again' } end
  finish_reservation(state, chain, item[@cancel.reservation_id], reservation, $reservation.cancelled)
  return { 'spent', {} }
end

ff.register('spend', function(_, args)
  return ff.run_acts(args, acts, ff.open_budgets, ff.trim_reservations, ff.write_budgets)
end)
