-- ff1_graph: a whole graph in one step, or one chunk of a large one; what is there already stays.
-- request: {{tag, flow id, flow, births, edges, groups, is_last}, ...}; a birth as in ff1_create,
--   edges are {edge id, edge}, groups {target, group}
-- answers: {'created', flow, is_new, was_whole, more}, or {'refused', flow or false, row, static,
--   edge id, edge or false}; row and static are numbers of raw elements, 0 when there is none

-- The places of births and edges that are not there yet; a refusal when an id is taken.
local function look(c, item, found)
  local tag, flow_id, births, edges = item[1], item[2], item[4], item[5]
  if not found and not ff.has_old(births) then return nil, births, edges end
  local new_births, new_edges = {}, {}
  for i = 1, #births do
    local row = call('HGET', 'ff:x:' .. births[i][1], 'r')
    if not row then
      new_births[#new_births + 1] = births[i]
    elseif ff.decode(row)[@flow_id] ~= flow_id then
      local row_number, static = ff.show(c, births[i][1], row)
      return { 'refused', found and ff.copied(found) or false, row_number, static, '', false }
    end
  end
  for i = 1, #edges do
    local stored, edge = found and ff.edge(tag, flow_id, edges[i][1]), edges[i][2]
    if not stored then
      new_edges[#new_edges + 1] = edges[i]
    elseif stored[@e.source] ~= edge[@e.source] or stored[@e.target] ~= edge[@e.target] then
      return { 'refused', ff.copied(found), 0, 0, edges[i][1], stored }
    end
  end
  return nil, new_births, new_edges
end

-- Edges of a member with very many of them may come in several chunks: its group counts the missing
-- ones as staged, and one by one they become edges that count.
local function grow_groups(c, groups, edges)
  local grown = {}
  for i = 1, #edges do
    local target = edges[i][2][@e.target]
    if ff.group(c, target) then grown[target] = (grown[target] or 0) + 1 end
  end
  for i = 1, #groups do
    if not ff.group(c, groups[i][1]) then ff.put_group(c, groups[i][1], groups[i][2]) end
  end
  for target, count in pairs(grown) do
    local group = ff.group(c, target)
    local staged = group[@g.staged] - count
    group[@g.n], group[@g.staged] = group[@g.n] + count, staged > 0 and staged or 0
    ff.put_group(c, target, group)
  end
end

local function begin_groups(c, groups)
  for i = 1, #groups do ff.put_group(c, groups[i][1], groups[i][2]) end
end

-- A source may have ended in an earlier chunk, by an operator's hand.
local function settle_ended(c, tag, flow_id, edges)
  local ended = {}
  for i = 1, #edges do
    local source = ff.load(edges[i][2][@e.source])
    if source and FINAL[source[@state]] then ended[#ended + 1] = edges[i] end
  end
  ff.settle_edges(c, tag, flow_id, ended)
end

local function insert(c, tag, flow_id, birth)
  local key = birth[11]
  local key_name = key ~= '' and ff.idempotency(tag, 'flow:' .. flow_id, key) or nil
  ff.insert(c, birth, key_name, ff.take_group(c, birth[1]))
end

local function write(c, item, flow, births, edges, is_first)
  local tag, flow_id = item[1], item[2]
  -- Nobody of a flow that is just being made has a group yet.
  if is_first then begin_groups(c, item[6]) else grow_groups(c, item[6], edges) end
  ff.insert_edges(c, tag, flow_id, edges)
  ff.grow_flow(flow, #births, #edges)
  if flow[@f.incomplete] and item[7] then
    flow[@f.incomplete], flow[@f.submit_until] = false, 0
  elseif flow[@f.incomplete] then
    flow[@f.submit_until] = c.now + ABANDONED_AFTER_MS
  end
  ff.keep_flow(c, tag, flow_id, flow)
  local ids = {}
  for i = 1, #births do
    insert(c, tag, flow_id, births[i])
    ids[i] = births[i][1]
  end
  -- Nobody of a flow that is just being made can have ended.
  if not is_first then
    settle_ended(c, tag, flow_id, edges)
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
  local refusal, births, edges = look(c, item, found)
  if refusal then return refusal end
  local flow = found or item[3]
  if not found then flow[@f.created_at] = c.now end
  local more = write(c, item, flow, births, edges, not found)
  return { 'created', ff.copied(flow), not found, false, more }
end

ff.register('graph', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, create_graph))
end)
