-- Who waits at a limit: listed by rank when refused, admissible when there is room again.
--
-- keys    ff:wr:T:<limit>   zset  executions by rank
--         ff:wd:T:<limit>   hash  execution -> packed {rank, until, needs an entry (1 or 0), cap, grant}
--         ff:we:T           zset  "<execution> <limit>" by the instant from which it no longer waits
-- A limit is named b:<budget>, q:<quota> or k:<namespace>:<key>.

local function ranks_key(tag, limit) return $key.waiter_ranks .. tag .. ':' .. limit end
local function details_key(tag, limit) return $key.waiters .. tag .. ':' .. limit end

-- The waiter, false when it is not listed.
function ff.waiter(tag, limit, execution)
  local packed = call('HGET', details_key(tag, limit), execution)
  return packed and unpack_message(packed)
end

function ff.has_waiters(tag, limit)
  return call('EXISTS', ranks_key(tag, limit)) == 1
end

function ff.list_waiter(tag, limit, execution, waiter)
  call('HSET', details_key(tag, limit), execution, pack(waiter))
  call('ZADD', ranks_key(tag, limit), waiter[1], execution)
  call('ZADD', $key.waiter_ends .. tag, waiter[2], execution .. ' ' .. limit)
end

function ff.unlist_waiter(tag, limit, execution)
  if call('ZREM', ranks_key(tag, limit), execution) == 1 then
    call('HDEL', details_key(tag, limit), execution)
    call('ZREM', $key.waiter_ends .. tag, execution .. ' ' .. limit)
  end
end

-- The first waiters of a limit, best rank first: {{execution, waiter}, ...}.
function ff.first_waiters(tag, limit, most)
  local found = call('ZRANGE', ranks_key(tag, limit), 0, most - 1)
  for i = 1, #found do
    found[i] = { found[i], ff.waiter(tag, limit, found[i]) }
  end
  return found
end

-- Take these off their list; those still waiting are added to `admissible` as execution, grant.
function ff.take_waiters(tag, limit, chosen, now, admissible)
  for i = 1, #chosen do
    local execution, waiter = chosen[i][1], chosen[i][2]
    ff.unlist_waiter(tag, limit, execution)
    if waiter[2] > now then
      admissible[#admissible + 1] = execution
      admissible[#admissible + 1] = waiter[5]
    end
  end
end

-- Forget those whose time is over; how many that were.
function ff.drop_ended_waiters(tag, now, most)
  local ended = call('ZRANGEBYSCORE', $key.waiter_ends .. tag, '-inf', now, 'LIMIT', 0, most)
  for i = 1, #ended do
    local blank = find(ended[i], ' ', 1, true)
    ff.unlist_waiter(tag, sub(ended[i], blank + 1), sub(ended[i], 1, blank - 1))
  end
  return #ended
end
