-- ff1_graph: a whole graph in one step, or one chunk of a large one; what is there already stays.
-- request: {{tag, flow id, flow, shapes, births, edges, lists, is_last}, ...}; shapes as in ff1_create; births are {id, number of its shape, and the arguments
--   of static text, input and group, 0 for none, ...} in turn; edges as `ff.given_edge` reads them, with
--   the lists they belong to
-- answers: {'created', flow, is_new, was_whole, more}, or {'refused', flow or false, row, static,
--   edge id, edge or false}; row and static are numbers of raw elements, 0 when there is none

local STRIDE = 5
local NOTHING = {}

-- Whether each of the births is there already, by id; a refusal when one is of another flow.
local function look_at_members(c, flow_id, births, found)
  local known = {}
  for at = 1, #births, STRIDE do
    local id = births[at]
    local row = call('HGET', $key.execution .. id, $field.record)
    if row and ff.decode(row)[@flow_id] ~= flow_id then
      local row_number, static = ff.show(c, id, row)
      return nil, { 'refused', found and ff.copied(found) or false, row_number, static, '', false }
    end
    known[id] = row and true or false
  end
  return known
end

-- Which of the edges are there already, by id; a refusal when one has other ends.
local function look_at_edges(c, tag, flow_id, edges, found)
  local known = ff.known_edges(tag, flow_id, edges)
  for i = 2, #edges do
    local stored = known[edges[i]]
    local edge = stored and ff.given_edge(c, edges, i - 1)
    if edge and (stored[@e.source] ~= edge[@e.source] or stored[@e.target] ~= edge[@e.target]) then
      return nil, { 'refused', ff.copied(found), 0, 0, edges[i], stored }
    end
  end
  return known
end

local function has_old(births)
  local keys = {}
  for at = 1, #births, STRIDE do keys[#keys + 1] = $key.execution .. births[at] end
  return ff.has_any(keys)
end

-- What is there of a graph already: its members and its edges by id, or a refusal.
local function look(c, item, found)
  local tag, flow_id, births, edges = item[1], item[2], item[5], item[6]
  if not found and not has_old(births) then return NOTHING, NOTHING end
  local members, refusal = look_at_members(c, flow_id, births, found)
  if refusal or not found then return members, NOTHING, refusal end
  local known
  known, refusal = look_at_edges(c, tag, flow_id, edges, found)
  return members, known, refusal
end

-- Edges of a member with very many of them may come in several chunks: its group counts the missing
-- ones as staged, and one by one they become edges that count.
local function grow_groups(c, tag, lists, members, known)
  for i = 1, #lists, 2 do
    local target = ff.target_of(tag, lists[i])
    local group = target and members[target] == nil and ff.group(c, target)
    if group then
      local count = ff.count_unknown(lists[i + 1], known)
      local staged = group[@g.staged] - count
      group[@g.n], group[@g.staged] = group[@g.n] + count, staged > 0 and staged or 0
      ff.put_group(c, target, group)
    end
  end
end

-- A source may have ended in an earlier chunk, by an operator's hand.
local function settle_ended(c, tag, flow_id, edges, known)
  local ended = {}
  for i = 2, #edges do
    local edge = not known[edges[i]] and ff.given_edge(c, edges, i - 1)
    local source = edge and ff.load(edge[@e.source])
    if source and FINAL[source[@state]] then ended[#ended + 1] = { edges[i], edge } end
  end
  ff.settle_edges(c, tag, flow_id, ended)
end

local function insert(c, tag, shape, births, at)
  local args, group = c.args, births[at + 4]
  local r = ff.insert(c, tag, births[at], shape, args[births[at + 2]], args[births[at + 3]], group ~= 0 and args[group])
  shape.born, shape.count = r, (shape.count or 0) + 1
end

-- Write the members that are not there; their ids. One that came into being by itself gets its group.
local function insert_members(c, tag, flow, shapes, births, known)
  local ids = {}
  for at = 1, #births, STRIDE do
    local id, group = births[at], births[at + 4]
    if not known[id] then
      insert(c, tag, shapes[births[at + 1]], births, at)
      ids[#ids + 1] = id
    elseif group ~= 0 and not ff.group(c, id) then
      ff.put_group(c, id, ff.array(c.args[group]))
    end
  end
  for i = 1, #shapes do
    if shapes[i].born then ff.count_members(flow, shapes[i].born, shapes[i].count) end
  end
  return ids
end

local function grow(c, flow, members, edges, known, is_last)
  local count = #edges - 1
  for _ in pairs(known) do count = count - 1 end
  ff.grow_flow(flow, members, count)
  if flow[@f.incomplete] and is_last then
    flow[@f.incomplete], flow[@f.submit_until] = false, 0
  elseif flow[@f.incomplete] then
    flow[@f.submit_until] = c.now + $graph_chunks.ABANDONED_AFTER_MS
  end
end

local function write(c, item, flow, members, known, is_first)
  local tag, flow_id, edges, lists = item[1], item[2], item[6], item[7]
  if not is_first then grow_groups(c, tag, lists, members, known) end
  if #edges > 1 then ff.insert_edges(c, tag, flow_id, edges, known, lists, is_first) end
  local ids = insert_members(c, tag, flow, item[4], item[5], members)
  grow(c, flow, #ids, edges, known, item[8])
  ff.keep_flow(c, tag, flow_id, flow)
  if ff.has_ended_members(flow) then
    settle_ended(c, tag, flow_id, edges, known)
    ff.cut_late(c, tag, flow_id, ids)
  end
  return ff.end_flow_step(c, tag, flow_id)
end

local function create_graph(c, item)
  local tag, flow_id = item[1], item[2]
  local found = ff.flow(c, tag, flow_id)
  if found and not found[@f.incomplete] then return { 'created', ff.copied(found), false, true, false } end
  if found and (found[@f.cancelled_at] ~= 0 or found[@f.digest] ~= item[3][@f.digest]) then
    return { 'refused', ff.copied(found), 0, 0, '', false }
  end
  local members, known, refusal = look(c, item, found)
  if refusal then return refusal end
  local flow = found or item[3]
  if not found then flow[@f.created_at] = c.now end
  local more = write(c, item, flow, members, known, not found)
  return { 'created', ff.copied(flow), not found, false, more }
end

ff.register('graph', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, create_graph, LONG.flows))
end)
