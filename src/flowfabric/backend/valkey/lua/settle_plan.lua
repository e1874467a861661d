-- What a plan does to the graph its record belongs to: edges and groups it brings along, the edges
-- that its end settles, and a wait that was over before it began.

-- Whether a plan's groups are still those it was decided from, and its flow is not cancelled.
-- mirrors core.apply._flow_fits
function ff.graph_fits(c, tag, plan, r)
  if plan[@p.uncancelled] and r[@flow_id] ~= '' then
    local flow = ff.flow(c, tag, r[@flow_id])
    if flow and flow[@f.cancelled_at] ~= 0 then return false end
  end
  local edit = plan[@p.graph]
  return not edit or ff.groups_fit(c, edit)
end

-- An edit is {edges, groups, seen}: {edge id, edge}, {target, group} and {target, group or false}.
-- mirrors core.apply.graph_fits
function ff.groups_fit(c, edit)
  for i = 1, #edit[3] do
    if not ff.is_same_group(c, edit[3][i][1], edit[3][i][2]) then return false end
  end
  return true
end

function ff.write_edit(c, tag, flow_id, edit)
  for i = 1, #edit[1] do ff.put_edge(c, tag, flow_id, edit[1][i][1], edit[1][i][2]) end
  for i = 1, #edit[2] do ff.put_group(c, edit[2][i][1], edit[2][i][2]) end
end

-- mirrors core.apply._settle, core.apply._grow
local function settle_graph(c, tag, id, plan, before, after)
  local edit, flow_id = plan[@p.graph], after[@flow_id]
  ff.member_moved(c, tag, id, before, after)
  if edit then
    local parks = plan[@p.rule] == $rule.park or plan[@p.rule] == $rule.suspend
    local flow = parks and #edit[1] > 0 and ff.flow(c, tag, flow_id)
    if flow then
      ff.grow_flow(flow, 0, #edit[1])
      ff.keep_flow(c, tag, flow_id, flow)
    end
    ff.settle_edges(c, tag, flow_id, edit[1], plan[@p.rule] == $rule.replay)
  end
  if FINAL[after[@state]] and not plan[@p.unsettled] then
    ff.settle_from(c, tag, flow_id, id, after)
  end
  if plan[@p.rule] == $rule.restart then ff.settle_restart(c, tag, flow_id, id, after) end
end

-- A record that parks or replays may wait for nothing: the last child ended just before. A repeat is
-- to be answered like the call that parked and was released in the same step.
-- mirrors core.apply._release_if_met, core.apply._remember_answer
local function release_if_met(c, tag, id, plan)
  local r, row = ff.load(id)
  if ff.is_blocked(r) then
    local released = ff.release_if_open(c, tag, id, row, r)
    if not released then return r, row end
    r, row = released, pack(released)
  end
  if not plan[@p.op] or r[@state] == $state.blocked then return r, row end
  local answered = ff.copy(r)
  ff.put(answered, @op_state, answered[@state])
  if answered[@op_wake_at] ~= answered[@wake_at] then ff.put(answered, @op_wake_at, answered[@wake_at]) end
  return answered, ff.write(c, id, r, answered)
end

-- What a plan that was performed does to the graph: the record and row as they are afterwards, and
-- whether the flow has more to do.
-- mirrors core.apply._perform, core.apply._has_moved, core.apply._has_more
function ff.settle_plan(c, id, plan, before, after, row)
  local flow_id, edit = after[@flow_id], plan[@p.graph]
  if flow_id == '' and after[@state] ~= $state.blocked then return after, row, false end
  local tag = ff.tag_of(id)
  if edit and flow_id ~= '' then ff.write_edit(c, tag, flow_id, edit) end
  local moved = edit or before[@state] ~= after[@state] or before[@reason] ~= after[@reason]
  if moved and flow_id ~= '' then settle_graph(c, tag, id, plan, before, after) end
  if ff.is_blocked(after) then after, row = release_if_met(c, tag, id, plan) end
  if not moved or flow_id == '' then return after, row, false end
  return after, row, ff.end_flow_step(c, tag, flow_id)
end
