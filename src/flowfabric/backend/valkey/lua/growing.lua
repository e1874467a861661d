-- ff1_graph: a whole new graph in one step, or the first chunk of a large one.
-- request: {{tag, flow id, flow, shapes, births, edges, lists, is_last}, ...}; shapes as in ff1_create; births are
--   {id, number of its shape, and the arguments of static text, input and group, 0 for none, ...} in turn; edges
--   and lists as `ff.insert_edges` takes them
-- answers: {'created', flow}; {'known'} when there is such a flow, or one of the members, already: then it is
--   not new, and nothing was written

local STRIDE = 5

local function has_old(births)
  local keys = {}
  for at = 1, #births, STRIDE do keys[#keys + 1] = ff.execution(births[at]) end
  return ff.has_any(keys)
end

local function insert(c, tag, shape, births, at)
  local args, group = c.args, births[at + 4]
  local r = ff.insert(c, tag, births[at], shape, args[births[at + 2]], args[births[at + 3]], group ~= 0 and args[group])
  shape.born, shape.count = r, (shape.count or 0) + 1
end

local function insert_members(c, tag, flow, shapes, births)
  for at = 1, #births, STRIDE do insert(c, tag, shapes[births[at + 1]], births, at) end
  for i = 1, #shapes do
    if shapes[i].born then ff.count_members(flow, shapes[i].born, shapes[i].count) end
  end
end

local function create_graph(c, item)
  local tag, flow_id, flow, births, edges = item[1], item[2], item[3], item[5], item[6]
  if ff.flow(c, tag, flow_id) or has_old(births) then return { 'known' } end
  flow[@f.created_at] = c.now
  if #edges > 1 then ff.insert_edges(c, tag, flow_id, edges, item[7]) end
  insert_members(c, tag, flow, item[4], births)
  ff.grow_flow(flow, #births / STRIDE, #edges - 1)
  if flow[@f.incomplete] and item[8] then
    flow[@f.incomplete], flow[@f.submit_until] = false, 0
  elseif flow[@f.incomplete] then
    flow[@f.submit_until] = c.now + $graph_chunks.ABANDONED_AFTER_MS
  end
  ff.keep_flow(c, tag, flow_id, flow)
  return { 'created', ff.copied(flow) }
end

ff.register('graph', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, create_graph, LONG.flows))
end)
