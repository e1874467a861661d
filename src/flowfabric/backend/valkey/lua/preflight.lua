-- Checks what settling the end of a member would meet, before anything is written: functions do not roll
-- back, and a group whose counters contradict its edges must leave the member as it is.

local function check_room(group, target)
  local contradiction = ff.overfull(group, target)
  if contradiction then error(contradiction, 0) end
end

-- A copy of a group to count in, read once and never stored.
local function group_copy(c, groups, target)
  local group = groups[target]
  if group == nil then
    local stored = ff.group(c, target)
    group = stored and ff.copied(stored) or false
    groups[target] = group
  end
  return group
end

-- Count an outcome in; the record of the target if it would be skipped by that.
local function skipped_by(group, edge, outcome)
  check_room(group, edge[@e.target])
  ff.count_outcome(group, edge, outcome)
  if group[@g.state] ~= $group.pending or ff.judge(group) ~= $group.impossible then return nil end
  group[@g.state] = $group.impossible
  local r = ff.load(edge[@e.target])
  return r and not FINAL[r[@state]] and r
end

-- Check the ends that follow from each other, until all are checked or a step would be full; how many
-- edges the step may settle.
local function look_ahead(c, tag, flow_id, ends, edges)
  local groups, looked, at = {}, 0, 1
  while ends[at] and looked < $settle.EDGES_PER_STEP do
    local source, outcome, replays = unpack(ends[at])
    if at > 1 then
      local _
      _, edges = ff.first_edges(tag, flow_id, source)
    end
    for i = 1, #edges do
      if ff.is_full(c, CPU_LIMITS.preflight, looked) then return looked end
      looked = looked + 1
      local edge = edges[i]
      local counts = edge[@e.state] == $edge.open and ff.outcome_counts(edge, outcome, replays)
      local group = counts and group_copy(c, groups, edge[@e.target])
      local skipped = group and group[@g.round] == edge[@e.round] and skipped_by(group, edge, outcome)
      if skipped then ends[#ends + 1] = { edge[@e.target], $outcome.skipped, skipped[@replay_count] } end
    end
    at = at + 1
  end
  return $settle.EDGES_PER_STEP
end

-- A single edge that is satisfied skips nobody: nothing behind it needs a check.
local function check_one(c, edge)
  local group = edge[@e.state] == $edge.open and ff.group(c, edge[@e.target])
  if group and group[@g.round] == edge[@e.round] then check_room(group, edge[@e.target]) end
end

-- Fail the item if settling the member's edges, or those of whoever is skipped by that, would meet such
-- a group within one step. The flow is read too: one that cannot be read ends nobody. The first page
-- of edges is left for the settling itself, and how many of them it may settle.
function ff.preflight(c, tag, id, before, state)
  c.turn = (c.turn or 0) + 1
  local flow_id = before[@flow_id]
  if FINAL[before[@state]] or not ff.flow(c, tag, flow_id) or not FINAL[state] then return end
  local outcome, ids, edges = OUTCOMES[state], ff.first_edges(tag, flow_id, id)
  c.ahead = { id, ids, edges, $settle.EDGES_PER_STEP }
  if #edges == 1 and ff.is_satisfied(edges[1], outcome) then return check_one(c, edges[1]) end
  c.ahead[4] = look_ahead(c, tag, flow_id, { { id, outcome, before[@replay_count] } }, edges)
end
