-- ff1_graph: a whole new graph in one step, or the first chunk of a large one.
-- request: {@create_graph, ...}; members are @member, one behind the other
-- answers: {'created', flow}; {'known'} when there is such a flow, or one of the members, already: then it is
--   not new, and nothing was written

local STRIDE = @member.group_argument

local function has_old(members)
  local keys = {}
  for at = 0, #members - 1, STRIDE do keys[#keys + 1] = ff.execution(members[at + @member.id]) end
  return ff.has_any(keys)
end

local function insert(c, tag, shape, members, at)
  local args, group = c.args, members[at + @member.group_argument]
  local r = ff.insert(c, tag, members[at + @member.id], shape, args[members[at + @member.static_argument]], args[members[at + @member.input_argument]], group ~= 0 and args[group])
  shape.first, shape.count = r, (shape.count or 0) + 1
end

local function insert_all(c, tag, flow, shapes, members)
  for at = 0, #members - 1, STRIDE do insert(c, tag, shapes[members[at + @member.shape]], members, at) end
  for i = 1, #shapes do
    if shapes[i].first then ff.count_members(flow, shapes[i].first, shapes[i].count) end
  end
end

local function create_graph(c, item)
  local tag, flow_id, flow, members, edges = item[@create_graph.tag], item[@create_graph.flow_id], item[@create_graph.flow], item[@create_graph.members], item[@create_graph.edges]
  if ff.flow(c, tag, flow_id) or has_old(members) then return { 'known' } end
  flow[@f.created_at] = c.now
  if #edges > 1 then ff.insert_edges(c, tag, flow_id, edges, item[@create_graph.lists]) end
  insert_all(c, tag, flow, item[@create_graph.shapes], members)
  ff.grow_flow(flow, #members / STRIDE, #edges - 1)
  if flow[@f.incomplete] and item[@create_graph.is_last] then
    flow[@f.incomplete], flow[@f.submit_until] = false, 0
  elseif flow[@f.incomplete] then
    flow[@f.submit_until] = c.now + $new_execution.ABANDONED_AFTER_MS
  end
  ff.keep_flow(c, tag, flow_id, flow)
  return { 'created', ff.copied(flow) }
end

ff.register('graph', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, create_graph, CPU_LIMITS.flows))
end)
