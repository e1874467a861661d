-- From a plan and a record to the record after it: the guard, the step, and all it writes.

function ff.fits(plan, r, now)
  local state = r[@state]
  local states = plan[@p.states]
  local narrowed = state .. '/' .. r[@reason]
  local allowed = false
  for i = 1, #states do
    if states[i] == state or states[i] == narrowed then
      allowed = true
      break
    end
  end
  if not allowed then return false end
  local fence = plan[@p.fence]
  if fence and not (
    r[@lease_id] == fence[1] and r[@lease_epoch] == fence[2] and r[@attempt_id] == fence[3]
    and r[@lease_until] > now
  ) then
    return false
  end
  local version, suspension, grant = plan[@p.version], plan[@p.suspension_id], plan[@p.grant_id]
  if version and r[@version] ~= version then return false end
  if suspension and r[@suspension_id] ~= suspension then return false end
  return not grant or r[@grant_id] == grant
end

-- The operation id as a record remembers it; the lease makes a reused text another one.
function ff.operation(plan)
  local op, fence = plan[@p.op], plan[@p.fence]
  return op and fence and fence[1] .. ':' .. op
end

-- What entering a state clears, whatever the plan: fields that mean nothing there.
local function enter(before, after, now, given)
  local state = after[@state]
  after[@moved_at] = now
  if not given[@reason] then after[@reason] = '' end
  if not given[@detail] and after[@detail] ~= '' then after[@detail] = '' end
  if not HELD[state] then ff.clear(after, LEASE_FIELDS) end
  if state ~= 'suspended' then ff.clear(after, SUSPENSION_FIELDS) end
  if FINAL[state] then
    ff.clear(after, GRANT_FIELDS)
    ff.clear(after, FINAL_FIELDS)
    ff.put(after, @completed_at, now)
    ff.put(after, @purge_at, now + before[@retention_ms])
    return
  end
  if not COUNTS.wake_at[state] and after[@wake_at] ~= 0 then after[@wake_at] = 0 end
  if not COUNTS.attempt_until[state] and after[@attempt_until] ~= 0 then after[@attempt_until] = 0 end
  if not CLAIMABLE[state] then ff.clear(after, GRANT_FIELDS) end
end

-- The attempt a plan ends is returned; one it pauses or whose stream it closes stays in the record.
local function change_attempt(before, after, plan, now)
  local attempt = ff.attempt_of(before)
  local how, closing = plan[@p.attempt], plan[@p.close_stream]
  if not attempt or not (how or closing) then return nil end
  local news = ff.copy_attempt(attempt)
  if closing then
    ff.put_attempt(news, @a.closed_at, attempt[@a.closed_at] ~= 0 and attempt[@a.closed_at] or now)
    ff.put_attempt(news, @a.closed_reason, closing)
  end
  if how and how[1] == 'end' then
    news[@a.state] = how[2]
    ff.put_attempt(news, @a.ended_at, now)
    if how[3] ~= '' or attempt[@a.failure_reason] ~= '' then ff.put_attempt(news, @a.failure_reason, how[3]) end
    if how[4] ~= '' or attempt[@a.failure_category] ~= '' then ff.put_attempt(news, @a.failure_category, how[4]) end
    local event = plan[@p.event]
    if event and HELD[before[@state]] then
      ff.put_attempt(news, @a.released_reason, ff.detail(event[3], 'reason'))
    end
    after[@attempt] = ''
    return news
  end
  if how then
    news[@a.state] = 'suspended'
    ff.put_attempt(news, @a.suspended_at, now)
    ff.put_attempt(news, @a.suspension_id, how[2])
    if before[@attempt_until] ~= 0 then
      local left = before[@attempt_until] - now
      ff.put(after, @attempt_left_ms, left > 0 and left or 0)
    end
  end
  after[@attempt] = news
  return nil
end

-- The record after the plan, and the attempt it ended, if any.
function ff.step(before, plan, now)
  local after = ff.copy(before)
  local given = {}
  local set = plan[@p.set]
  for i = 1, #set, 2 do
    given[set[i]] = true
    ff.put(after, set[i], set[i + 1])
  end
  local stamps = plan[@p.stamp]
  if stamps then
    for i = 1, #stamps do ff.put(after, stamps[i], now) end
  end
  local timer = plan[@p.timer]
  if timer then
    for i = 1, #timer, 3 do
      local instant = timer[i + 2]
      if timer[i + 1] then instant = now + instant end
      -- 0 is "unset", so an instant somebody named is never stored as 0.
      ff.put(after, timer[i], instant < 1 and not timer[i + 1] and 1 or instant)
    end
  end
  if after[@state] ~= before[@state] then enter(before, after, now, given) end
  local ended = change_attempt(before, after, plan, now)
  if plan[@p.op] then
    ff.put(after, @op_id, ff.operation(plan))
    ff.put(after, @op_state, after[@state])
    if after[@wake_at] ~= after[@op_wake_at] then ff.put(after, @op_wake_at, after[@wake_at]) end
  end
  ff.derive(before, after, now)
  return after, ended
end

-- Write a record with all that follows from it. `fields` may bring further fields of its hash
-- along; the packed record is returned.
function ff.write(c, id, before, after, ended, fields)
  fields = fields or {}
  local row = pack(after)
  local size = #fields
  fields[size + 1], fields[size + 2] = 'r', row
  if ended then
    fields[size + 3], fields[size + 4] = 'a' .. ended[@a.index], pack(ended)
  end
  call('HSET', 'ff:x:' .. id, unpack(fields))
  ff.reindex(c, ff.tag_of(id), id, before, after)
  ff.ring_for(c, id, before, after, ended)
  return row
end

-- Do a plan whose guard has held: write the record, then tell its event.
function ff.perform(c, id, before, plan, fields)
  local after, ended = ff.step(before, plan, c.now)
  local row = ff.write(c, id, before, after, ended, fields)
  local event = plan[@p.event]
  if event then ff.tell(c, ff.tag_of(id), id, event, before, after) end
  return after, row
end
