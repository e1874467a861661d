-- From a plan and a record to the record after it: the guard, the step, and all it writes.

local put = ff.put

-- What follows from a plan alone, computed once, because plans of one shape share a table: its states as a
-- set, the state it moves to (false if it moves to none), how wide the record must be that it sets fields of,
-- whether it gives reason and detail, and the reason it gives for a release.
local function prepare(plan)
  local allowed, set, event = {}, plan[@p.set], plan[@p.event]
  for _, state in pairs(plan[@p.states]) do allowed[state] = true end
  plan.allowed, plan.aim, plan.width = allowed, false, 0
  for i = 1, #set, 2 do
    local place = set[i]
    if place > plan.width then plan.width = place end
    if place == @state then plan.aim = set[i + 1] end
    if place == @reason then plan.gives_reason = true end
    if place == @detail then plan.gives_detail = true end
  end
  plan.released = event and ff.detail(event[3], 'reason')
  return plan
end

function ff.prepared(plan)
  return plan.allowed and plan or prepare(plan)
end

-- mirrors core.transition.guard_holds
function ff.fits(plan, r, now)
  local state, allowed = r[@state], ff.prepared(plan).allowed
  if not allowed[state] and not allowed[state .. '/' .. r[@reason]] then return false end
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
  local mail_count = plan[@p.mail_count]
  if mail_count and r[@mail_count] ~= mail_count then return false end
  return not grant or r[@grant_id] == grant
end

-- What entering a state clears, whatever the plan: fields that mean nothing there.
-- mirrors core.transition._enter
local function enter(before, after, plan, now)
  local state = after[@state]
  after[@moved_at] = now
  if not plan.gives_reason then after[@reason] = '' end
  if not plan.gives_detail and after[@detail] ~= '' then after[@detail] = '' end
  if after[@attempt] == PLAIN and not HELD[state] then after[@attempt] = ff.attempt_of(before) end
  if FINAL[state] then
    ff.clear(after, FINAL_CLEARED)
    ff.widen(after, @purge_at)
    after[@completed_at], after[@purge_at] = now, now + before[@retention_ms]
    return
  end
  if not HELD[state] then ff.clear(after, LEASE_FIELDS) end
  if state ~= $state.suspended then ff.clear(after, SUSPENSION_FIELDS) end
  if not COUNTS.wake_at[state] and after[@wake_at] ~= 0 then after[@wake_at] = 0 end
  if not COUNTS.attempt_until[state] and after[@attempt_until] ~= 0 then after[@attempt_until] = 0 end
  if not CLAIMABLE[state] then ff.clear(after, GRANT_FIELDS) end
end

local function end_attempt(before, attempt, plan, now)
  local how, released = plan[@p.attempt], plan.released
  attempt[@a.state], attempt[@a.ended_at] = how[2], now
  if how[3] ~= '' or attempt[@a.failure_reason] ~= '' then ff.put_attempt(attempt, @a.failure_reason, how[3]) end
  if how[4] ~= '' or attempt[@a.failure_category] ~= '' then ff.put_attempt(attempt, @a.failure_category, how[4]) end
  if released and HELD[before[@state]] then attempt[@a.released_reason] = released end
end

local function pause_attempt(before, after, attempt, suspension_id, now)
  attempt[@a.state] = $attempt.suspended
  ff.put_attempt(attempt, @a.suspended_at, now)
  ff.put_attempt(attempt, @a.suspension_id, suspension_id)
  if before[@attempt_until] ~= 0 then
    local left = before[@attempt_until] - now
    put(after, @attempt_left_ms, left > 0 and left or 0)
  end
end

-- The attempt a plan ends is returned; one it pauses or whose stream it closes stays in the record.
-- mirrors core.transition._change_attempt
local function change_attempt(before, after, plan, now)
  local how, closing = plan[@p.attempt], plan[@p.close_stream]
  local attempt = (how or closing) and ff.attempt_of(before)
  if not attempt then return nil end
  local news = before[@attempt] == PLAIN and attempt or ff.copy_attempt(attempt)
  for i = #news + 1, @a.closed_reason do news[i] = ATTEMPT_DEFAULTS[i] end
  if closing then
    if news[@a.closed_at] == 0 then news[@a.closed_at] = now end
    news[@a.closed_reason] = closing
  end
  if how and how[1] == 'end' then
    end_attempt(before, news, plan, now)
    after[@attempt] = ''
    return news
  end
  if how then pause_attempt(before, after, news, how[2], now) end
  after[@attempt] = news
  return nil
end

-- The record after the plan, and the attempt it ended, if any.
-- mirrors core.transition.transition, core.transition._arm
function ff.transition(before, plan, now)
  local after, set = ff.copy(before), ff.prepared(plan) and plan[@p.set]
  if plan.width > #before then ff.widen(after, plan.width) end
  for i = 1, #set, 2 do after[set[i]] = set[i + 1] end
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
  local ended = change_attempt(before, after, plan, now)
  if after[@state] ~= before[@state] then enter(before, after, plan, now) end
  if plan[@p.op] then
    ff.widen(after, @op_state)
    after[@op_id], after[@op_state] = plan[@p.op], after[@state]
    if after[@wake_at] ~= after[@op_wake_at] then ff.put(after, @op_wake_at, after[@wake_at]) end
  end
  ff.derive(before, after, now)
  return after, ended
end

-- The field of an attempt that has ended.
local ATTEMPT_FIELDS = {}

local function attempt_field(index)
  local name = ATTEMPT_FIELDS[index]
  if not name then
    name = $field.attempt .. index
    if index < 100 then ATTEMPT_FIELDS[index] = name end
  end
  return name
end

-- Write a record with all that follows from it. `fields` may bring further fields of its hash
-- along; the packed record is returned.
function ff.write(c, id, before, after, ended, fields)
  local key, row, held, trace = $key.execution .. id, pack(after), ff.held[id], c.trace
  local ended_field, ended_row
  if ended then ended_field, ended_row = attempt_field(ended[@a.index]), pack(ended) end
  if held then
    ff.held[id] = nil
    before, fields = held.before, held.fields
  end
  if ended and fields then
    call('HSET', key, $field.record, row, ended_field, ended_row, unpack(fields))
  elseif ended then
    call('HSET', key, $field.record, row, ended_field, ended_row)
  elseif fields then
    call('HSET', key, $field.record, row, unpack(fields))
  else
    call('HSET', key, $field.record, row)
  end
  if trace then trace.row, trace.ended, trace.ended_field = row, ended_row, ended_field end
  ff.reindex(c, id, before, after)
  local attempt = ended or after[@attempt]
  if attempt ~= PLAIN and attempt ~= '' and attempt[@a.closed_at] == c.now then
    ff.notify_stream(c, id, attempt[@a.index])
    if trace then trace.stream = attempt[@a.index] end
  end
  if FINAL[after[@state]] and not (before and FINAL[before[@state]]) then
    ff.notify_end(c, id)
    if trace then trace.is_end = true end
  end
  return row
end

-- Hold back what a record has become: if the claim behind this call takes it, it is written once. Whoever
-- looks at it before has it written.
function ff.hold(c, id, before, after, fields)
  ff.held[id] = { c = c, before = before, after = after, fields = fields }
end

function ff.write_held(id)
  local held = ff.held[id]
  ff.write(held.c, id, held.before, held.after)
end

-- Do a plan whose guard has held: write the record, then emit its event.
function ff.perform(c, id, before, plan, fields)
  local after, ended = ff.transition(before, plan, c.now)
  local row = ff.write(c, id, before, after, ended, fields)
  local event = plan[@p.event]
  if event then ff.emit(c, id, event, before, after) end
  if not plan[@p.fence] and before[@state] == $state.active and after[@state] ~= $state.active then
    ff.notify(c, $base.WORKER_TOPICS .. before[@worker_instance_id])
  end
  return after, row
end
