-- The budgets of a call: whole chains, without the reservations that have ended, written once at its end.
--
-- keys    ff:b:T:<budget>          string  packed budget
--         ff:v:T:budget_timers     zset    budgets by the instant their timer is due
--         ff:br:T:<budget>         hash    reservation -> packed {root, amounts, until, execution, state}
--         ff:be:T:<root>           zset    "<budget><reservation>" of a tree's reservations by their end
--         ff:bl:T:<execution>      hash    budget -> packed ledger {{budget, reset count, amounts}, ...}
--         ff:bk:T:<budget>:<key>   string  until when a repeat is recognised
--         ff:ba:T:<budget>         zset    executions created under a budget, by id
-- A chain is a budget and its ancestors, leaf first, all in one partition; a level of it is
-- {id =, budget =, due =}. Amounts come as {name, amount, ...} in byte order of the names, each below
-- 2^53: doubles are exact there, and a sum beyond is never rounded to less.

-- Budgets of one partition.
function ff.open_budgets(c, tag)
  return { c = c, tag = tag, now = c.now, levels = {}, trimmed = {}, touched = {} }
end

local function due_of(budget)
  local reset, first_end = budget[@b.next_reset_at], budget[@b.reservations_end_at]
  if reset == 0 or (first_end > 0 and first_end < reset) then return first_end end
  return reset
end

-- One budget, nil when there is none; an unreadable one is an error.
function ff.level(state, id)
  local level = state.levels[id]
  if level then return level end
  local body = call('GET', $key.budget .. state.tag .. ':' .. id)
  if not body then return nil end
  local readable, budget = pcall(unpack_message, body)
  if not readable or type(budget) ~= 'table' or #budget < @b.names then
    return nil, { 'unreadable', 'budget', id }
  end
  level = { id = id, budget = budget, due = due_of(budget) }
  state.levels[id] = level
  return level
end

-- nil without an error when there is no such budget.
function ff.chain(state, id)
  local leaf, fault = ff.level(state, id)
  if not leaf then return nil, fault end
  local chain, ancestors = { leaf }, leaf.budget[@b.ancestors]
  for i = 1, #ancestors do
    local level
    level, fault = ff.level(state, ancestors[i])
    if not level then return nil, fault or { 'orphan', id, ancestors[i] } end
    chain[i + 1] = level
  end
  return chain
end

function ff.needed_chain(state, id)
  local chain, fault = ff.chain(state, id)
  if not chain then return nil, fault or { 'missing', id } end
  return chain
end

function ff.touch(state, level)
  level.budget[@b.last_updated_at] = state.now
  state.touched[level.id] = level
end

-- Give back what was set aside; a dimension of which nothing is left is not listed.
-- mirrors core.limits.budgets.free
function ff.free(state, chain, amounts)
  for i = 1, #chain do
    local reserved = chain[i].budget[@b.reserved]
    for name, amount in pairs(amounts) do
      local left = (reserved[name] or 0) - amount
      reserved[name] = left > 0 and left or nil
    end
    ff.touch(state, chain[i])
  end
end

local function ended_reservations(state, ends)
  local members = call('ZRANGEBYSCORE', ends, '-inf', state.now, 'LIMIT', 0, $gates.MOST_ENDED)
  local reservations = {}
  for i = 1, #members do
    local owner, name = sub(members[i], 1, $ids.UUID_LENGTH), sub(members[i], $ids.UUID_LENGTH + 1)
    local reservation = unpack_message(call('HGET', $key.reservations .. state.tag .. ':' .. owner, name))
    local chain = reservation[5] == $reservation.open and ff.chain(state, owner)
    if chain == nil then return {} end
    reservations[i] = { owner = owner, name = name, amounts = reservation[2], chain = chain }
  end
  return reservations
end

-- Forget a reservation of a budget, which stands in the order of its tree.
function ff.drop_reservation(tag, root, owner, name)
  call('HDEL', $key.reservations .. tag .. ':' .. owner, name)
  call('ZREM', $key.reservation_ends .. tag .. ':' .. root, owner .. name)
end

-- Drop the ended reservations of a budget's tree, once per call. Where a chain cannot be read none is
-- dropped: the item that needs it meets the same error.
function ff.trim_reservations(state, id)
  local chain = ff.chain(state, id)
  local root = chain and chain[#chain]
  if not root or state.trimmed[root.id] then return end
  state.trimmed[root.id] = true
  local first_end = root.budget[@b.reservations_end_at]
  if first_end == 0 or first_end > state.now then return end
  local ends = $key.reservation_ends .. state.tag .. ':' .. root.id
  local reservations = ended_reservations(state, ends)
  for i = 1, #reservations do
    local reservation = reservations[i]
    if reservation.chain then ff.free(state, reservation.chain, reservation.amounts) end
    ff.drop_reservation(state.tag, root.id, reservation.owner, reservation.name)
  end
end

-- Give a budget these fields, whether it is there or new.
function ff.put_budget(state, id, budget)
  local level = ff.level(state, id) or { id = id, due = 0 }
  level.budget = budget
  state.levels[id], state.touched[id] = level, level
end

function ff.write_budgets(state)
  for id, level in pairs(state.touched) do
    call('SET', $key.budget .. state.tag .. ':' .. id, pack(level.budget))
    local due = due_of(level.budget)
    if due ~= level.due then
      level.due = due
      if due == 0 then
        call('ZREM', ff.view(state.tag, $view.budget_timers), id)
      else
        call('ZADD', ff.view(state.tag, $view.budget_timers), due, id)
        ff.timed(state.c, state.tag, due)
      end
    end
  end
  state.touched = {}
end

-- The first amount whose name is no dimension of the budget.
-- mirrors core.limits.budgets.check_dimensions
function ff.unknown_dimension(level, amounts)
  local hard = level.budget[@b.hard_limits]
  for i = 1, #amounts, 2 do
    if hard[amounts[i]] == nil then return { 'dimension', amounts[i], level.id, level.budget[@b.names] } end
  end
end

-- The first level that cannot take this much more, and the breach. `held` is what a reservation has set aside for it
-- already: within that nothing is refused.
-- mirrors core.limits.budgets.refusal
function ff.refusal(chain, amounts, held)
  for i = 1, #chain do
    local budget = chain[i].budget
    local hard, used, reserved = budget[@b.hard_limits], budget[@b.used], budget[@b.reserved]
    for j = 1, budget[@b.enforcement_mode] ~= $enforcement.advisory and #amounts or 0, 2 do
      local name, taking = amounts[j], amounts[j + 1]
      local limit, aside = hard[name] or 0, held[name]
      if limit > 0 and (not aside or taking > aside) then
        local more = (reserved[name] or 0) - (aside or 0) + taking
        if (used[name] or 0) + more > limit then
          return chain[i], { 'hard', chain[i].id, name, used[name] or 0, limit, budget[@b.on_hard_limit] }
        end
      end
    end
  end
end

-- mirrors core.limits.budgets.breached
function ff.breached(state, level, dimension)
  local budget = level.budget
  budget[@b.breach_count] = budget[@b.breach_count] + 1
  budget[@b.last_breach_at], budget[@b.last_breach_dim] = state.now, dimension
  ff.touch(state, level)
end

-- Of the first level where counts would no longer be exact, the dimensions of which that is so.
-- mirrors core.limits.budgets.plus
function ff.overflow(chain, place, amounts)
  for i = 1, #chain do
    local counts, over = chain[i].budget[place], nil
    for j = 1, #amounts, 2 do
      if (counts[amounts[j]] or 0) + amounts[j + 1] > $budgets.MAX_AMOUNT then
        over = over or { 'overflow' }
        over[#over + 1] = amounts[j]
      end
    end
    if over then return over end
  end
end

-- Whether a level lets no new work start: it is strict and has used all of a dimension.
-- mirrors core.limits.budgets.closed
function ff.closed(level)
  local budget = level.budget
  if budget[@b.enforcement_mode] == $enforcement.advisory then return nil end
  local names, hard, used = budget[@b.names], budget[@b.hard_limits], budget[@b.used]
  for i = 1, #names do
    local limit, spent = hard[names[i]], used[names[i]] or 0
    if limit > 0 and spent >= limit then return { 'closed', level.id, names[i], spent, limit } end
  end
end

-- The best waiters of every level that is open now, MOST_ADMISSIBLE of them together.
function ff.admissible_at_budgets(state, levels)
  local admissible = {}
  for i = 1, #levels do
    local room = $gates.MOST_ADMISSIBLE - #admissible / 2
    if room > 0 and not ff.closed(levels[i]) then
      local limit = $gates.BUDGET .. levels[i].id
      local chosen = ff.first_waiters(state.tag, limit, room)
      ff.take_waiters(state.tag, limit, chosen, state.now, admissible)
    end
  end
  return admissible
end
