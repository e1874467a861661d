-- What a claim writes: the lease on a record, and the reservation that may come before it.
-- terms: {worker, instance, lease id, attempt id, lease_for, reason}

-- mirrors core.lease._why
local function why(before)
  if before[@next] == $next.reclaim then return before[@reason] end
  if before[@next] == $next.retry then return before[@retry_reason] end
  if before[@next] == $next.replay then return before[@replay_reason] end
  return ''
end

-- mirrors core.lease._interrupted
local function interrupted(before, now)
  local attempt = ff.attempt_of(before)
  if not attempt then return nil end
  local ended = ff.copy_attempt(attempt)
  ended[@a.state] = $attempt.interrupted_reclaimed
  ff.put_attempt(ended, @a.ended_at, now)
  ff.put_attempt(ended, @a.failure_reason, before[@reason])
  ff.put_attempt(ended, @a.closed_at, attempt[@a.closed_at] ~= 0 and attempt[@a.closed_at] or now)
  ff.put_attempt(ended, @a.closed_reason, $lease.RECLAIMED)
  return ended
end

-- The new attempt, with what the record alone does not have of it.
local function attempt_for(before, after, terms, now)
  local next = before[@next]
  if next == $next.first and terms[6] == '' then return PLAIN end
  local attempt = {
    terms[4], terms[3], before[@attempt_count], ATTEMPT_TYPES[next], $attempt.started, now,
    after[@lease_epoch], terms[1], terms[2],
  }
  local previous = before[@state] == $state.lost and before[@attempt_index] or before[@previous_attempt]
  local reason, put = why(before), ff.put_attempt
  if terms[6] ~= '' then put(attempt, @a.acquired_reason, terms[6]) end
  if previous ~= $record.NO_ATTEMPT then put(attempt, @a.previous_attempt, previous) end
  if reason ~= '' then put(attempt, @a.lineage_reason, reason) end
  if next == $next.replay and before[@replay_requested_by] ~= '' then
    put(attempt, @a.lineage_requester, before[@replay_requested_by])
  end
  return attempt
end

-- Events of one table share a group of the log.
local ACQUIRED = { $event.acquired, $family.lease, {} }

-- mirrors core.lease._begin, core.lease._acquired, core.lease._reclaimed
local function begun(before, after, terms, now)
  local reclaiming = before[@state] == $state.lost
  after[@attempt], after[@attempt_index] = attempt_for(before, after, terms, now), before[@attempt_count]
  after[@attempt_id], after[@attempt_type] = terms[4], ATTEMPT_TYPES[before[@next]]
  after[@attempt_count] = before[@attempt_count] + 1
  local limit = before[@attempt_timeout_ms]
  if limit ~= 0 then
    ff.put(after, @attempt_until, now + limit)
  elseif after[@attempt_until] ~= 0 then
    after[@attempt_until] = 0
  end
  ff.clear(after, BEGIN_CLEARED)
  if not reclaiming then
    return nil, terms[6] == '' and ACQUIRED or { $event.acquired, $family.lease, { 'reason', terms[6] } }
  end
  ff.put(after, @reclaim_count, before[@reclaim_count] + 1)
  return interrupted(before, now), { $event.reclaimed, $family.lease, {
    'old_lease_epoch', before[@lease_epoch] .. '', 'new_lease_id', terms[3],
    'new_lease_epoch', after[@lease_epoch] .. '', 'new_attempt_id', terms[4],
    'new_attempt_index', after[@attempt_index] .. '',
  } }
end

-- mirrors core.lease._resume
local function resumed(before, after, terms, now)
  local attempt = ff.attempt_of(before)
  if attempt then
    local news = ff.copy_attempt(attempt)
    local put = ff.put_attempt
    if attempt[@a.first_lease_id] == '' then put(news, @a.first_lease_id, attempt[@a.lease_id]) end
    if attempt[@a.first_lease_epoch] == 0 then put(news, @a.first_lease_epoch, attempt[@a.lease_epoch]) end
    if attempt[@a.first_worker_id] == '' then put(news, @a.first_worker_id, attempt[@a.worker_id]) end
    if attempt[@a.first_instance_id] == '' then put(news, @a.first_instance_id, attempt[@a.worker_instance_id]) end
    news[@a.state] = $attempt.started
    put(news, @a.resumed_at, now)
    put(news, @a.suspended_at, 0)
    put(news, @a.suspension_id, '')
    news[@a.lease_id], news[@a.lease_epoch] = terms[3], after[@lease_epoch]
    news[@a.worker_id], news[@a.worker_instance_id] = terms[1], terms[2]
    after[@attempt] = news
  end
  if before[@attempt_timeout_ms] ~= 0 then
    ff.put(after, @attempt_until, now + before[@attempt_left_ms])
  end
  ff.clear(after, RESUME_CLEARED)
  local reason = (terms[6] ~= '' and terms[6] or $lease.CLAIM) .. $events.RESUMED
  return nil, { $event.acquired, $family.lease, { 'reason', reason } }
end

-- Write the record under a new lease; the record and its row.
-- mirrors core.lease.lease
function ff.lease(c, id, before, terms)
  local now = c.now
  local after = ff.copy(before)
  after[@state], after[@reason], after[@next] = $state.active, '', ''
  after[@moved_at] = now
  after[@started_at] = before[@started_at] ~= 0 and before[@started_at] or now
  after[@lease_epoch] = before[@lease_epoch] + 1
  after[@lease_id], after[@lease_until], after[@lease_ttl_ms] = terms[3], now + terms[5], terms[5]
  after[@lease_acquired_at], after[@lease_renewed_at] = now, now
  after[@worker_id], after[@worker_instance_id] = terms[1], terms[2]
  local ended, event
  if before[@next] == $next.resume then
    ended, event = resumed(before, after, terms, now)
  else
    ended, event = begun(before, after, terms, now)
  end
  ff.clear(after, CLAIM_CLEARED)
  ff.derive(before, after, now)
  local row = ff.write(c, id, before, after, ended)
  ff.emit(c, id, event, after, after)
  if after[@flow_id] ~= '' then ff.member_moved(c, ff.tag_of(id), id, before, after) end
  return after, row
end

-- mirrors core.lease.grant_kind
local function grant_kind(r)
  if r[@state] == $state.lost then return $grant.reclaim end
  return r[@next] == $next.resume and $grant.resume or $grant.claim
end

-- Reserve a record for a worker; its row.
-- mirrors core.rules.operators.grant
function ff.reserve(c, id, before, worker, instance, grant_id, length)
  local after = ff.copy(before)
  ff.put(after, @grant_until, c.now + length)
  ff.put(after, @grant_id, grant_id)
  ff.put(after, @grant_kind, grant_kind(before))
  ff.put(after, @grant_worker, worker)
  ff.put(after, @grant_instance, instance)
  if after[@grant_note] ~= '' then after[@grant_note] = '' end
  ff.derive(before, after, c.now)
  return ff.write(c, id, before, after)
end
