-- Flows, edges and groups as one call sees them. Flows and groups are read once and written when
-- the call ends; edges are written as they change.
--
-- ff:f:T:<flow>    string  the flow, packed
-- ff:e:T:<flow>    hash    edge id -> the edge, packed
-- ff:el:T:<flow>   zset    the ids of its edges, in their order
-- ff:eo|ei:<id>    zset    the ids of the edges that leave, or reach, a member
-- field g of a member's hash: the group of its inbound edges, packed

local function flow_key(tag, flow_id)
  return 'ff:f:' .. tag .. ':' .. flow_id
end

local function edges_key(tag, flow_id)
  return 'ff:e:' .. tag .. ':' .. flow_id
end

function ff.edge_list(tag, flow_id)
  return 'ff:el:' .. tag .. ':' .. flow_id
end

function ff.outgoing(id)
  return 'ff:eo:' .. id
end

function ff.incoming(id)
  return 'ff:ei:' .. id
end

-- ---- flows

-- What the partition lists a flow by: its timer, and its purge once all members are gone.
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
      entry.flow, entry.is_stored = unpack_message(row), true
      entry.due_at, entry.purge_at = listed(entry.flow)
    end
  end
  return entry
end

-- The flow, nil when there is none. Whoever changes it calls `ff.keep_flow`.
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
      call('ZADD', ff.view(tag, 'flows_by_age'), flow[@f.created_at], flow_id)
      if flow[@f.partition] >= 0 then call('ZADD', ff.view(tag, 'flows'), 0, flow_id) end
    end
  elseif entry.is_stored then
    call('DEL', flow_key(tag, flow_id))
    call('ZREM', ff.view(tag, 'flows'), flow_id)
    call('ZREM', ff.view(tag, 'flows_by_age'), flow_id)
  end
  list_flow(ff.view(tag, 'flow_timers'), flow_id, entry.due_at, due_at)
  list_flow(ff.view(tag, 'flow_purge'), flow_id, entry.purge_at, purge_at)
  if due_at ~= 0 and due_at ~= entry.due_at then ff.timed(c, tag, due_at) end
end

-- ---- groups

local function group_entry(c, target)
  c.groups = c.groups or {}
  local entry = c.groups[target]
  if not entry then
    local row = call('HGET', 'ff:x:' .. target, 'g')
    entry = { group = row and unpack_message(row) or nil }
    c.groups[target] = entry
  elseif entry.row then
    entry.group, entry.row = unpack_message(entry.row), nil
  end
  return entry
end

-- The group of a member's inbound edges, nil when there is none. Whoever changes it puts it.
function ff.group(c, target)
  return group_entry(c, target).group
end

function ff.put_group(c, target, group)
  c.groups = c.groups or {}
  c.groups[target] = { group = group, is_changed = true }
end

-- Put a group as it came, packed, of a member nobody has looked at yet.
function ff.put_group_row(c, target, row)
  c.groups = c.groups or {}
  c.groups[target] = { row = row, is_changed = true }
end

-- The packed group of a new member, to be written with it; nil when it has none.
function ff.take_group(c, target)
  local entry = c.groups and c.groups[target]
  if not entry or not entry.is_changed then return nil end
  entry.is_changed = false
  return entry.row or pack(entry.group)
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

-- ---- edges

-- Edges of a list by id, behind `after`: their ids, and the edges in the same order.
function ff.edges(tag, flow_id, list, after, limit)
  local ids = call('ZRANGE', list, after == '' and '-' or '(' .. after, '+', 'BYLEX', 'LIMIT', 0, limit)
  if #ids == 0 then return ids, {} end
  local rows = call('HMGET', edges_key(tag, flow_id), unpack(ids))
  for i = 1, #rows do rows[i] = unpack_message(rows[i]) end
  return ids, rows
end

function ff.edge(tag, flow_id, edge_id)
  local row = call('HGET', edges_key(tag, flow_id), edge_id)
  return row and unpack_message(row) or nil
end

function ff.has_edge(tag, flow_id, edge_id)
  return call('HEXISTS', edges_key(tag, flow_id), edge_id) == 1
end

-- Write an edge that may be new.
function ff.put_edge(c, tag, flow_id, edge_id, edge)
  if edge[@e.created_at] == 0 then edge[@e.created_at] = c.now end
  if call('HSET', edges_key(tag, flow_id), edge_id, pack(edge)) == 1 then
    call('ZADD', ff.edge_list(tag, flow_id), 0, edge_id)
    call('ZADD', ff.outgoing(edge[@e.source]), 0, edge_id)
    call('ZADD', ff.incoming(edge[@e.target]), 0, edge_id)
  end
end

-- Edges per command when many are written at once.
local MANY = 1000

local function add_all(list, ids)
  for from = 1, #ids, MANY do
    local entries = {}
    for i = from, from + MANY - 1 do
      if not ids[i] then break end
      entries[#entries + 1], entries[#entries + 2] = 0, ids[i]
    end
    call('ZADD', list, unpack(entries))
  end
end

-- Most lists of a graph get one edge.
local function grouped(lists, key, edge_id)
  local ids = lists[key]
  if not ids then
    lists[key] = edge_id
  elseif type(ids) == 'string' then
    lists[key] = { ids, edge_id }
  else
    ids[#ids + 1] = edge_id
  end
end

-- New edges as they come: a list whose first element is the number of the argument that has the
-- first one's packed row, then id, source and target of each in turn.
function ff.new_edge(edges, number)
  local at = 3 * number
  return edges[at - 1], edges[at], edges[at + 1]
end

function ff.new_edge_row(c, edges, number)
  return c.args[edges[1] + number - 1]
end

-- Write new edges, of which the numbers are given. Their rows end with an instant that is not set.
function ff.insert_edges(c, tag, flow_id, edges, numbers)
  local lists, all, now = {}, {}, pack(c.now)
  for from = 1, #numbers, MANY do
    local fields = {}
    for i = from, from + MANY - 1 do
      local number = numbers[i]
      if not number then break end
      local edge_id, source, target = ff.new_edge(edges, number)
      fields[#fields + 1] = edge_id
      fields[#fields + 1] = sub(ff.new_edge_row(c, edges, number), 1, -2) .. now
      all[#all + 1] = edge_id
      grouped(lists, ff.outgoing(source), edge_id)
      grouped(lists, ff.incoming(target), edge_id)
    end
    call('HSET', edges_key(tag, flow_id), unpack(fields))
  end
  add_all(ff.edge_list(tag, flow_id), all)
  for list, ids in pairs(lists) do
    if type(ids) == 'string' then call('ZADD', list, 0, ids) else add_all(list, ids) end
  end
end

-- Write edges that are there already; fields are edge id, packed edge, ... in turn.
function ff.update_edges(tag, flow_id, fields)
  if #fields > 0 then call('HSET', edges_key(tag, flow_id), unpack(fields)) end
end

-- Drop edges of a flow, in the order of their ids; how many it were.
function ff.drop_edges(tag, flow_id, limit)
  local ids, edges = ff.edges(tag, flow_id, ff.edge_list(tag, flow_id), '', limit)
  if #ids == 0 then return 0 end
  for i = 1, #ids do
    call('ZREM', ff.outgoing(edges[i][@e.source]), ids[i])
    call('ZREM', ff.incoming(edges[i][@e.target]), ids[i])
  end
  call('ZREM', ff.edge_list(tag, flow_id), unpack(ids))
  call('HDEL', edges_key(tag, flow_id), unpack(ids))
  return #ids
end

-- Put the result of a member over the input of another; the bytes copied.
function ff.copy_result(source, target)
  local result = call('HGET', 'ff:x:' .. source, 'out')
  if not result then return 0 end
  call('HSET', 'ff:x:' .. target, 'in', result)
  return #result
end

-- Write the flows and groups a call has changed.
function ff.write_graph(c)
  if c.groups then
    for target, entry in pairs(c.groups) do
      if entry.is_changed then call('HSET', 'ff:x:' .. target, 'g', entry.row or pack(entry.group)) end
    end
  end
  if c.flows then
    for flow_id, entry in pairs(c.flows) do
      if entry.is_changed then write_flow(c, flow_id, entry) end
    end
  end
end

-- ---- verdicts

function ff.resolved_edges(group)
  return group[@g.succeeded] + group[@g.failed] + group[@g.skipped]
end

-- What the counters of a pending group amount to.
function ff.judge(group)
  local lost = group[@g.failed] + group[@g.skipped]
  local n, k = group[@g.n], group[@g.k]
  if group[@g.policy] == 'all_of' then
    if lost > 0 then return 'impossible' end
    return group[@g.succeeded] == n and group[@g.staged] == 0 and 'satisfied' or 'pending'
  end
  if group[@g.policy] == 'any_of' then k = 1 end
  if group[@g.succeeded] >= k then return 'satisfied' end
  if n >= k then return lost > n - k and 'impossible' or 'pending' end
  local resolved = ff.resolved_edges(group) == n
  return resolved and group[@g.staged] == 0 and 'impossible' or 'pending'
end

-- What is wrong with a group that is told more outcomes than it has edges; nil while there is room.
function ff.overfull(group, target)
  if ff.resolved_edges(group) < group[@g.n] then return nil end
  return 'invariant: group of ' .. target .. ': more outcomes than its ' .. group[@g.n] .. ' edges'
end

function ff.is_satisfied(edge, outcome)
  return outcome == 'success' or edge[@e.kind] == 'finished'
end

function ff.count_outcome(group, edge, outcome)
  local place = @g.failed
  if ff.is_satisfied(edge, outcome) then
    place = @g.succeeded
  elseif outcome == 'skipped' then
    place = @g.skipped
  end
  group[place] = group[place] + 1
end

-- Whether an end of its source, replayed so often by then, resolves this edge.
function ff.outcome_counts(edge, outcome, replays)
  return replays >= edge[@e.past_ends] or ff.is_satisfied(edge, outcome)
end

function ff.end_counts(edge, source)
  local outcome = FINAL[source[@state]] and OUTCOMES[source[@state]]
  return outcome and ff.outcome_counts(edge, outcome, source[@replay_count])
end
