-- A flow's side of its members' moves: counters, timer, and the end.

-- How far behind the counter of members in a state that of children is.
local BEHIND = CHILD_PLACES.active - COUNT_PLACES.active

-- Where the counters of a flow count a member in this state.
-- mirrors core.states.public_state
local function place_of(state, reason)
  if state == $state.blocked then state = PUBLIC_BLOCKED[reason] or $state.waiting end
  if state == $state.lost then state = $state.active end
  return COUNT_PLACES[state]
end

-- mirrors core.graph.live_members
local function live_members(flow)
  local live = 0
  for i = 1, #LIVE_PLACES do live = live + flow[LIVE_PLACES[i]] end
  return live
end

-- mirrors core.graph.states_to_cancel
local function states_to_cancel(flow)
  return flow[@f.cancelled_at] ~= 0 and CANCELLED_BY_POLICY[flow[@f.cancel_policy]] or nil
end
ff.states_to_cancel = states_to_cancel

-- How many members the flow's cancellation still has to end, by its counters.
-- mirrors core.graph.members_to_cancel
local function members_to_cancel(flow)
  if not states_to_cancel(flow) then return 0 end
  local spared = flow[@f.cancel_policy] == $policy.cancel_pending and flow[COUNT_PLACES.active] or 0
  return live_members(flow) - spared
end
ff.members_to_cancel = members_to_cancel

-- mirrors core.graph.live_children
local function live_children(flow)
  local live = 0
  if not flow[CHILD_PLACES.active] then return 0 end
  for i = 1, #LIVE_PLACES do live = live + flow[LIVE_PLACES[i] + BEHIND] end
  return live
end
ff.live_children = live_children

-- mirrors core.graph.may_cancel_members
function ff.may_cancel_members(flow)
  local unsettled = flow[@f.unsettled]
  for i = 1, #unsettled do
    if unsettled[i][@u.work] == $work.cancel_children then return false end
  end
  return members_to_cancel(flow) > 0
end

-- Whether a bounded step left something over that the flow's timer would go on with.
-- mirrors core.graph.has_work
local function has_work(flow)
  return #flow[@f.unsettled] > 0 or members_to_cancel(flow) > 0
end
ff.has_work = has_work

-- mirrors core.graph.flow_due_at
local function flow_due_at(flow, now)
  if has_work(flow) then
    local due_at = flow[@f.due_at]
    return due_at ~= 0 and due_at < now and due_at or now
  end
  return flow[@f.incomplete] and flow[@f.cancelled_at] == 0 and flow[@f.submit_until] or 0
end
ff.flow_due_at = flow_due_at

-- Keep a flow that has changed, with its timer, which follows from the rest.
-- mirrors core.members.keep_flow
function ff.keep_flow(c, tag, flow_id, flow)
  flow[@f.due_at] = flow_due_at(flow, c.now)
  flow[@f.changed_at] = c.now
  flow[@f.version] = flow[@f.version] + 1
  ff.put_flow(c, tag, flow_id, flow)
end

-- Its revision tells editors that a flow was changed.
-- mirrors core.graph.grown
function ff.grow_flow(flow, members, edges)
  flow[@f.node_count] = flow[@f.node_count] + members
  flow[@f.edge_count] = flow[@f.edge_count] + edges
  flow[@f.graph_revision] = flow[@f.graph_revision] + members + edges
end

-- Children are counted behind all members.
-- mirrors core.graph._counted
local function count_children(flow, left, entered, count)
  for place = #flow + 1, #flow + (flow[CHILD_PLACES.active] and 0 or BEHIND) do flow[place] = 0 end
  if left then flow[left + BEHIND] = flow[left + BEHIND] - count end
  flow[entered + BEHIND] = flow[entered + BEHIND] + count
end

-- Count new members of a flow with the same shape, each a change of its own.
function ff.count_members(flow, r, count)
  flow[@f.version] = flow[@f.version] + count
  local place = place_of(r[@state], r[@reason])
  flow[place] = flow[place] + count
  if r[@parent_id] ~= '' then count_children(flow, nil, place, count) end
end

-- Count a member's move in its flow; `before` is nil for a new member. A member that the
-- flow's cancellation covers from now on sets the flow's timer by this.
-- mirrors core.members.move_member, core.graph.count_move
function ff.member_moved(c, tag, _, before, after)
  local flow_id = after[@flow_id]
  local flow = ff.flow(c, tag, flow_id)
  if not flow then return end
  local left = before and before[@flow_id] ~= '' and place_of(before[@state], before[@reason])
  local entered = place_of(after[@state], after[@reason])
  if left == entered then return end
  if left then flow[left] = flow[left] - 1 end
  flow[entered] = flow[entered] + 1
  if after[@parent_id] ~= '' then count_children(flow, left, entered, 1) end
  if flow[@f.finished_at] ~= 0 and not FINAL[after[@state]] then
    flow[@f.finished_at], flow[@f.purge_at] = 0, 0
  end
  ff.keep_flow(c, tag, flow_id, flow)
end

-- Whether all members have ended and no more are on their way. A graph that was cancelled before it
-- was whole ends without the rest.
-- mirrors core.graph.is_over
local function is_over(flow)
  local whole = not flow[@f.incomplete] or flow[@f.cancelled_at] ~= 0
  return flow[@f.node_count] > 0 and whole and live_members(flow) == 0
end

-- The public state of a flow that is over.
-- mirrors core.graph.flow_state, core.graph.own_counts
local function end_state(flow)
  if flow[@f.cancelled_at] ~= 0 then return $state.cancelled end
  for i = 1, #UNHAPPY_PLACES do
    local children = flow[UNHAPPY_PLACES[i] + BEHIND] or 0
    if flow[UNHAPPY_PLACES[i]] > children then return $state.failed end
  end
  return $state.completed
end

-- Emit an event of a flow itself; event is {kind, families, details}.
-- mirrors core.members.flow_entry
function ff.emit_flow(c, tag, flow_id, flow, event)
  local tags, searchable = flow[@f.tags], {}
  for i = 1, #tags, 3 do
    if tags[i + 2] then searchable[#searchable + 1], searchable[#searchable + 2] = tags[i], tags[i + 1] end
  end
  ff.log(c, c.index_tag or tag, {
    c.now, flow[@f.namespace], event[1], event[2], '', '', searchable, event[3],
    flow_id, '', '', 0, '', $record.NO_ATTEMPT,
  })
end

-- Close the flow when its last live member has ended.
-- mirrors core.members.finish_flow
function ff.finish_flow(c, tag, flow_id)
  local flow = ff.flow(c, tag, flow_id)
  if not flow or flow[@f.finished_at] ~= 0 or not is_over(flow) then return end
  flow[@f.finished_at], flow[@f.purge_at] = c.now, c.now + flow[@f.retention_ms]
  ff.keep_flow(c, tag, flow_id, flow)
  ff.emit_flow(c, tag, flow_id, flow, { $event.finished, $family.flow, { 'state', end_state(flow) } })
end

-- Count a new member in; a refusal when its flow is missing, cancelled or another namespace's.
-- mirrors core.checks.explain_create
function ff.join_flow(c, tag, r)
  local flow_id = r[@flow_id]
  local flow = ff.flow(c, tag, flow_id)
  if not flow or flow[@f.cancelled_at] ~= 0 or flow[@f.namespace] ~= r[@namespace] then
    return { 'refused', flow and ff.attach(c, pack(flow)) or 0 }
  end
  ff.grow_flow(flow, 1, 0)
  ff.keep_flow(c, tag, flow_id, flow)
  return nil
end

-- Whether the cancellation of its flow ends the record.
-- mirrors core.graph.is_cancelled_by_flow
function ff.is_cancelled_by_flow(c, tag, r)
  local flow = ff.flow(c, tag, r[@flow_id])
  local states = flow and states_to_cancel(flow)
  if not states then return false end
  for i = 1, #states do
    if states[i] == r[@state] then return true end
  end
  return false
end
