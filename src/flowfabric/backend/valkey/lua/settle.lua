-- Settling: what the end of a member does to the graph behind it, in the same step. Edges are settled first, breadth
-- first, and siblings are cancelled when no edge is left.

-- Release a member. As many as may be claimed by the same call are held back for it.
-- mirrors core.members.release_plan
local function release(c, w, id, row, before)
  local plan = before[@state] == $state.blocked and before[@wake_at] > c.now and RELEASE_LATER or RELEASE_NOW
  if plan ~= RELEASE_NOW or not c.claims or c.claims < 1 then return ff.write_member(c, w, id, row, before, plan) end
  c.claims = c.claims - 1
  local group, after = ff.take_group(c, id), ff.transition(before, plan, c.now)
  ff.hold(c, id, before, after, group and { $field.group, group })
  if plan[@p.event] then ff.emit(c, id, plan[@p.event], before, after) end
  if after[@flow_id] ~= '' then ff.member_moved(c, w.tag, id, before, after) end
  return after
end

local function is_blocked(r)
  return r[@state] == $state.blocked and r[@reason] == $reason.dependencies
end
ff.is_blocked = is_blocked

-- mirrors core.members.waits_for_edges
local function waits_for_edges(r)
  return is_blocked(r) or (r[@state] == $state.suspended and r[@reason] == $reason.first)
end

-- Release a member that waits for dependencies of which none is open any more; nil if one is.
-- mirrors core.settle.release_if_open
local function release_if_open(c, tag, id, row, r)
  local group = ff.group(c, id)
  if group and group[@g.state] == $group.pending then
    if ff.resolved_edges(group) < group[@g.n] or group[@g.staged] ~= 0 then return nil end
    if group[@g.n] ~= 0 then
      group[@g.state], group[@g.fired_at] = $group.satisfied, c.now
      ff.put_group(c, id, group)
    end
  end
  return release(c, { tag = tag }, id, row, r)
end
ff.release_if_open = release_if_open

-- ---- edges

-- mirrors core.settle._Walk._fire
local function fire(c, w, target, group)
  if group[@g.on_satisfied] == $policy.cancel_remaining then
    local reason = $settle.SIBLING_QUORUM .. group[@g.state]
    group[@g.cancel_reason] = reason
    w.cancels[#w.cancels + 1] = ff.work_of($work.cancel_siblings, target, reason)
  end
  ff.put_group(c, target, group)
  local r, row = ff.read_once(c, ff.member_row(c, target))
  if not r or FINAL[r[@state]] then return end
  if group[@g.state] == $group.impossible then
    ff.follow(c, w, target, ff.write_member(c, w, target, row, r, SKIP))
  elseif waits_for_edges(r) then
    release(c, w, target, row, r)
  end
end

-- Resolve one open edge; it is written with the rest of its page. One more outcome than a group has
-- edges is left without effect, and the item is answered by that.
-- mirrors core.settle._Walk._resolve
local function resolve(c, w, edge, outcome, replayed)
  local target = edge[@e.target]
  local group = ff.group(c, target)
  if group and group[@g.round] ~= edge[@e.round] then group = nil end
  local contradiction = group and ff.overfull(group, target)
  if contradiction then
    c.violation = contradiction
    return false
  end
  local satisfied = ff.is_satisfied(edge, outcome)
  edge[@e.state] = satisfied and $edge.satisfied or $edge.impossible
  edge[@e.outcome], edge[@e.resolved_at] = outcome, c.now
  if not group then return true end
  local pending = group[@g.state] == $group.pending
  if pending and satisfied and edge[@e.data_ref] == $graph.INPUT then
    w.bytes = w.bytes - ff.copy_result(edge[@e.source], target)
  end
  ff.count_outcome(group, edge, outcome)
  local verdict = pending and ff.judge(group) or $group.pending
  if verdict == $group.pending or (replayed and verdict == $group.impossible) then
    ff.put_group(c, target, group)
  else
    group[@g.state], group[@g.fired_at] = verdict, c.now
    fire(c, w, target, group)
  end
  return true
end

-- ---- the walk

-- The first page of the edges that leave a member.
function ff.first_edges(tag, flow_id, id)
  return ff.edges(tag, flow_id, ff.outgoing(id), '', ($settle.EDGES_PER_STEP < $settle.PAGE and $settle.EDGES_PER_STEP or $settle.PAGE) + 1)
end

-- The next page of those, which may have been read ahead.
local function outgoing_page(c, w, work)
  local ahead = c.ahead
  c.ahead = nil
  if not ahead or ahead[1] ~= work[@u.execution_id] or work[@u.after] ~= '' or w.edges < w.most then
    return ff.page_of(w, ff.outgoing(work[@u.execution_id]), work, w.edges)
  end
  local limit = w.edges < $settle.PAGE and w.edges or $settle.PAGE
  return ahead[2], ahead[3], #ahead[2] < limit and #ahead[2] or limit
end

-- Leave the rest of a list, if it has one, to what comes after the newer work.
-- mirrors core.settle._Walk._go_on_behind
local function go_on_behind(w, work, ids, after)
  local has_rest = #ids > 0 and after ~= ids[#ids]
  if has_rest then w.left[#w.left + 1] = ff.continued(work, after) end
  return has_rest
end

-- mirrors core.settle._Walk._settle
local function settle_member(c, w, work)
  local source = w.ended[work[@u.execution_id]] or ff.load(work[@u.execution_id])
  -- A source replayed meanwhile settles its edges when it ends again.
  if not source or not FINAL[source[@state]] then return end
  local ids, edges, size = outgoing_page(c, w, work)
  local after, changed = work[@u.after], {}
  for i = 1, size do
    if not ff.has_room(c, w, CPU_LIMITS.walk) then break end
    w.looks = w.looks - 1
    after = ids[i]
    local edge = edges[i]
    if edge[@e.state] == $edge.open and ff.end_counts(edge, source) then
      w.edges = w.edges - 1
      if resolve(c, w, edge, OUTCOMES[source[@state]]) then
        changed[#changed + 1], changed[#changed + 2] = ids[i], pack(edge)
      end
    end
  end
  ff.update_edges(w.tag, w.flow_id, changed)
  go_on_behind(w, work, ids, after)
end

-- One inbound edge of a member; whether it has changed.
-- mirrors core.settle._Walk._gather_edge, core.graph.pass_over
local function gather_edge(c, w, edge, replayed)
  if edge[@e.state] ~= $edge.open then return false end
  local source = ff.load(edge[@e.source])
  if not source then return false end
  local changed = false
  if replayed and FINAL[source[@state]] then
    -- Of a source that has ended, only its next end counts for a replayed member.
    local past = source[@replay_count] + 1
    changed = edge[@e.past_ends] ~= past
    edge[@e.past_ends] = past
  end
  if ff.end_counts(edge, source) then
    w.edges = w.edges - 1
    return resolve(c, w, edge, OUTCOMES[source[@state]], replayed)
  end
  if changed then w.edges = w.edges - 1 end
  return changed
end

-- mirrors core.settle._Walk._gather, core.settle._Walk._release_replayed
local function gather(c, w, work)
  local replayed = work[@u.reason] == $settle.REPLAYED
  local ids, edges, size = ff.page_of(w, ff.incoming(work[@u.execution_id]), work, w.looks)
  local after, changed = work[@u.after], {}
  for i = 1, size do
    if not ff.has_room(c, w, CPU_LIMITS.walk) then break end
    w.looks = w.looks - 1
    after = ids[i]
    if gather_edge(c, w, edges[i], replayed) then
      changed[#changed + 1], changed[#changed + 2] = ids[i], pack(edges[i])
    end
  end
  ff.update_edges(w.tag, w.flow_id, changed)
  local has_rest = go_on_behind(w, work, ids, after)
  if replayed and not has_rest then
    -- It runs when no edge is open any more, whatever its group would say.
    local r, row = ff.load(work[@u.execution_id])
    if r and is_blocked(r) then release_if_open(c, w.tag, work[@u.execution_id], row, r) end
  end
end

-- mirrors core.settle._Walk._settle_next
local function settle_next(c, w)
  local work = w.left[#w.left]
  if work then
    w.left[#w.left] = nil
  else
    work = w.fresh[w.first]
    w.first = w.first + 1
  end
  w.looks = w.looks - 1
  if work[@u.work] == $work.gather then
    gather(c, w, work)
  elseif work[@u.work] == $work.cancel_children then
    ff.cancel_children_of(c, w, work)
  else
    settle_member(c, w, work)
  end
end

-- Work until nothing is left or the step is full; whether the flow has more to do.
-- mirrors core.settle._Walk.run
local function run(c, w)
  local flow = ff.flow(c, w.tag, w.flow_id)
  if not flow then return false end
  -- Siblings wait for all edges, also for those that other steps have left over.
  local may_cancel = true
  local unsettled = flow[@f.unsettled]
  for i = 1, #unsettled do may_cancel = may_cancel and unsettled[i][@u.work] == $work.cancel_siblings end
  while ff.has_room(c, w, CPU_LIMITS.walk) do
    if #w.left > 0 or w.first <= #w.fresh then
      settle_next(c, w)
    elseif #w.cancels > 0 and may_cancel then
      ff.cancel_next(c, w)
    else
      break
    end
  end
  return ff.remember(c, w)
end

-- ---- what others call

-- Settle the edges that leave a member that just ended, no more of them than were looked at before.
-- mirrors core.settle.settle_from
function ff.settle_from(c, tag, flow_id, id, ended)
  local ahead = c.ahead
  local w = ff.begin_walk(tag, flow_id, {}, ahead and ahead[1] == id and ahead[4])
  ff.follow(c, w, id, ended)
  run(c, w)
end

-- Cancel the live children of the rounds before.
-- mirrors core.settle.settle_restart
function ff.settle_restart(c, tag, flow_id, id, restarted)
  local w = ff.begin_walk(tag, flow_id, {})
  ff.follow_restart(c, w, id, restarted)
  run(c, w)
end

-- Cancel the children of members that ended without settling; members are id and record in turn.
-- mirrors core.settle.cancel_children
function ff.cancel_children(c, tag, flow_id, ended)
  local w = ff.begin_walk(tag, flow_id, {})
  for i = 1, #ended, 2 do ff.follow_children(c, w, ended[i], ended[i + 1]) end
  run(c, w)
end

-- Settle new or reopened edges whose source has ended already; items are {edge id, edge}. A replayed
-- member waits again for sources that did not succeed.
-- mirrors core.settle.settle_edges
function ff.settle_edges(c, tag, flow_id, items, replayed)
  local work, seen = {}, {}
  for i = 1, #items do
    local edge = items[i][2]
    local target = edge[@e.target]
    if edge[@e.state] == $edge.open and not seen[target] then
      seen[target] = true
      work[#work + 1] = ff.work_of($work.gather, target, replayed and $settle.REPLAYED)
    end
  end
  return #work > 0 and run(c, ff.begin_walk(tag, flow_id, work))
end

-- Take up what earlier steps left; whether there is still more.
-- mirrors core.settle.continue_flow
function ff.continue_flow(c, tag, flow_id)
  local flow = ff.flow(c, tag, flow_id)
  local work = flow[@f.unsettled]
  if #work == 0 then return false end
  flow[@f.unsettled] = ''
  ff.keep_flow(c, tag, flow_id, flow)
  local more = run(c, ff.begin_walk(tag, flow_id, work))
  ff.finish_flow(c, tag, flow_id)
  return more
end

-- Fail the item if it met a group that contradicts its edges.
function ff.check_violation(c)
  local violation = c.violation
  if violation then
    c.violation = nil
    error(violation, 0)
  end
end

-- End a step on a flow: close the flow if that was its last member; whether it has more to do.
function ff.end_flow_step(c, tag, flow_id)
  ff.finish_flow(c, tag, flow_id)
  ff.check_violation(c)
  local flow = ff.flow(c, tag, flow_id)
  return flow and ff.has_work(flow) or false
end
