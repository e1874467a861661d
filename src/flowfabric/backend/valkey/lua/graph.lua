-- Flows and groups as one call sees them: they are read once and written when the call ends.
--
-- ff:f:T:<flow>    string  the flow, packed
-- field g of a member's hash: the group of its inbound edges, packed

local function flow_key(tag, flow_id)
  return $key.flow .. tag .. ':' .. flow_id
end

-- ---- flows

-- What the partition lists a flow by: its timer, and its purge once all members are gone.
-- mirrors core.retention.flow_purge_at
local function listed(flow)
  local is_empty = flow[@f.purged_count] >= flow[@f.node_count]
  return flow[@f.due_at], is_empty and flow[@f.purge_at] or 0
end

local function flow_entry(c, tag, flow_id)
  c.flows = c.flows or {}
  local entry = c.flows[flow_id]
  if not entry then
    entry = { tag = tag, due_at = 0, purge_at = 0 }
    c.flows[flow_id] = entry
    local row = call('GET', flow_key(tag, flow_id))
    if row then
      entry.flow, entry.is_stored = ff.array(row), true
      entry.due_at, entry.purge_at = listed(entry.flow)
    end
  end
  return entry
end

-- The flow, nil when there is none. A caller that changes it must call `ff.keep_flow`.
function ff.flow(c, tag, flow_id)
  return flow_entry(c, tag, flow_id).flow
end

function ff.put_flow(c, tag, flow_id, flow)
  local entry = flow_entry(c, tag, flow_id)
  entry.flow, entry.is_changed = flow, true
end

function ff.drop_flow(c, tag, flow_id)
  local entry = flow_entry(c, tag, flow_id)
  entry.flow, entry.is_changed = nil, true
end

local function list_flow(key, flow_id, was, is)
  if was == is then return end
  if is == 0 then
    call('ZREM', key, flow_id)
  else
    call('ZADD', key, is, flow_id)
  end
end

local function write_flow(c, flow_id, entry)
  local tag, flow = entry.tag, entry.flow
  local due_at, purge_at = 0, 0
  if flow then
    due_at, purge_at = listed(flow)
    call('SET', flow_key(tag, flow_id), pack(flow))
    if not entry.is_stored then
      call('ZADD', ff.view(tag, $view.flows_by_age), flow[@f.created_at], flow_id)
      if flow[@f.partition] >= 0 then call('ZADD', ff.view(tag, $view.flows), 0, flow_id) end
    end
  elseif entry.is_stored then
    call('DEL', flow_key(tag, flow_id))
    call('ZREM', ff.view(tag, $view.flows), flow_id)
    call('ZREM', ff.view(tag, $view.flows_by_age), flow_id)
  end
  list_flow(ff.view(tag, $view.flow_timers), flow_id, entry.due_at, due_at)
  list_flow(ff.view(tag, $view.flow_purge), flow_id, entry.purge_at, purge_at)
  if due_at ~= 0 and due_at ~= entry.due_at then ff.timed(c, tag, due_at) end
end

-- ---- groups

local function group_entry(c, target)
  c.groups = c.groups or {}
  local entry = c.groups[target]
  if not entry then
    local found = call('HMGET', $key.execution .. target, $field.group, $field.record)
    entry = { group = found[1] and ff.array(found[1]) or nil, row = found[2], turn = c.turn }
    c.groups[target] = entry
  end
  return entry
end

-- The group of a member's inbound edges, nil when there is none. A caller that changes it must put it.
function ff.group(c, target)
  return group_entry(c, target).group
end

function ff.put_group(c, target, group)
  c.groups = c.groups or {}
  local entry = c.groups[target]
  if entry then
    entry.group, entry.is_changed = group, true
  else
    c.groups[target] = { group = group, is_changed = true }
  end
end

-- The row of a member whose group was looked at. What was read along with the group is good only in
-- the same turn: others may have written the record since.
function ff.member_row(c, target)
  local entry = c.groups[target]
  local row = c.turn and entry.turn == c.turn and entry.row
  entry.row = nil
  return row or ff.row(target)
end

-- The packed group of a member that is being written, to be written with it; nil when it has not
-- changed.
function ff.take_group(c, target)
  local entry = c.groups and c.groups[target]
  if entry then entry.row = nil end
  if not entry or not entry.is_changed then return nil end
  entry.is_changed = false
  return pack(entry.group)
end

-- Whether the stored group is the one a plan was decided from; `seen` is false for none.
function ff.is_same_group(c, target, seen)
  local group = ff.group(c, target)
  if not seen or not group then return not seen and not group end
  for i = 1, #seen do
    if group[i] ~= seen[i] then return false end
  end
  return true
end

-- Put the result of a member over the input of another; the bytes copied.
function ff.copy_result(source, target)
  local result = call('HGET', $key.execution .. source, $field.result)
  if not result then return 0 end
  call('HSET', $key.execution .. target, $field.input, result)
  return #result
end

-- Write the flows and groups a call has changed.
function ff.write_graph(c)
  if c.groups then
    for target, entry in pairs(c.groups) do
      if entry.is_changed then call('HSET', $key.execution .. target, $field.group, pack(entry.group)) end
    end
  end
  if c.flows then
    for flow_id, entry in pairs(c.flows) do
      if entry.is_changed then write_flow(c, flow_id, entry) end
    end
  end
end

-- ---- verdicts

-- mirrors core.graph.resolved_edges
function ff.resolved_edges(group)
  return group[@g.succeeded] + group[@g.failed] + group[@g.skipped]
end

-- What the counters of a pending group amount to.
-- mirrors core.graph.judge, core.graph.needed_successes
function ff.judge(group)
  local lost = group[@g.failed] + group[@g.skipped]
  local n, k = group[@g.n], group[@g.k]
  if group[@g.policy] == $policy.all_of then
    if lost > 0 then return $group.impossible end
    return group[@g.succeeded] == n and group[@g.staged] == 0 and $group.satisfied or $group.pending
  end
  if group[@g.policy] == $policy.any_of then k = 1 end
  if group[@g.succeeded] >= k then return $group.satisfied end
  if n >= k then return lost > n - k and $group.impossible or $group.pending end
  local resolved = ff.resolved_edges(group) == n
  return resolved and group[@g.staged] == 0 and $group.impossible or $group.pending
end

-- The error of a group that counts more outcomes than it has edges; nil while there is room.
function ff.overfull(group, target)
  if ff.resolved_edges(group) < group[@g.n] then return nil end
  return { answer = { 'overfull', target, group[@g.n] } }
end

-- mirrors core.graph.resolve_edge
function ff.is_satisfied(edge, outcome)
  return outcome == $outcome.success or edge[@e.kind] == $graph.FINISHED
end

-- mirrors core.graph.count_outcome
function ff.count_outcome(group, edge, outcome)
  local place = @g.failed
  if ff.is_satisfied(edge, outcome) then
    place = @g.succeeded
  elseif outcome == $outcome.skipped then
    place = @g.skipped
  end
  group[place] = group[place] + 1
end

-- Whether an end of its source, replayed so often by then, resolves this edge.
-- mirrors core.graph.end_counts
function ff.outcome_counts(edge, outcome, replays)
  return replays >= edge[@e.past_ends] or ff.is_satisfied(edge, outcome)
end

-- mirrors core.graph.end_counts
function ff.end_counts(edge, source)
  local outcome = FINAL[source[@state]] and OUTCOMES[source[@state]]
  return outcome and ff.outcome_counts(edge, outcome, source[@replay_count])
end
