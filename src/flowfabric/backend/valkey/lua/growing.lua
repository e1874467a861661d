-- ff1_graph: a whole graph in one step, or one chunk of a large one; what is there already stays.
-- request: {{tag, flow id, flow, births, edges, groups, is_last}, ...}; a birth as in ff1_create, edges
--   as `ff.new_edge` reads them, groups are the number of the argument that has the first one's packed
--   row, then the target of each
-- answers: {'created', flow, is_new, was_whole, more}, or {'refused', flow or false, row, static,
--   edge id, edge or false}; row and static are numbers of raw elements, 0 when there is none

local function every(count)
  local numbers = {}
  for i = 1, count do numbers[i] = i end
  return numbers
end

-- The births and the numbers of the edges that are not there yet; a refusal when an id is taken.
local function look(c, item, found)
  local tag, flow_id, births, edges = item[1], item[2], item[4], item[5]
  local count = (#edges - 1) / 3
  if not found and not ff.has_old(births) then return nil, births, every(count) end
  local new_births, numbers = {}, {}
  for i = 1, #births do
    local row = call('HGET', 'ff:x:' .. births[i][1], 'r')
    if not row then
      new_births[#new_births + 1] = births[i]
    elseif ff.decode(row)[@flow_id] ~= flow_id then
      local row_number, static = ff.show(c, births[i][1], row)
      return { 'refused', found and ff.copied(found) or false, row_number, static, '', false }
    end
  end
  for number = 1, count do
    local edge_id, source, target = ff.new_edge(edges, number)
    local stored = found and ff.edge(tag, flow_id, edge_id)
    if not stored then
      numbers[#numbers + 1] = number
    elseif stored[@e.source] ~= source or stored[@e.target] ~= target then
      return { 'refused', ff.copied(found), 0, 0, edge_id, stored }
    end
  end
  return nil, new_births, numbers
end

-- Edges of a member with very many of them may come in several chunks: its group counts the missing
-- ones as staged, and one by one they become edges that count.
local function grow_groups(c, groups, edges, numbers)
  local grown = {}
  for i = 1, #numbers do
    local _, _, target = ff.new_edge(edges, numbers[i])
    if ff.group(c, target) then grown[target] = (grown[target] or 0) + 1 end
  end
  for i = 2, #groups do
    if not ff.group(c, groups[i]) then ff.put_group_row(c, groups[i], c.args[groups[1] + i - 2]) end
  end
  for target, count in pairs(grown) do
    local group = ff.group(c, target)
    local staged = group[@g.staged] - count
    group[@g.n], group[@g.staged] = group[@g.n] + count, staged > 0 and staged or 0
    ff.put_group(c, target, group)
  end
end

-- Nobody of a flow that is just being made has a group yet.
local function begin_groups(c, groups)
  for i = 2, #groups do ff.put_group_row(c, groups[i], c.args[groups[1] + i - 2]) end
end

-- A source may have ended in an earlier chunk, by an operator's hand.
local function settle_ended(c, tag, flow_id, edges, numbers)
  local ended = {}
  for i = 1, #numbers do
    local edge_id, source_id = ff.new_edge(edges, numbers[i])
    local source = ff.load(source_id)
    if source and FINAL[source[@state]] then
      ended[#ended + 1] = { edge_id, unpack_message(ff.new_edge_row(c, edges, numbers[i])) }
    end
  end
  ff.settle_edges(c, tag, flow_id, ended)
end

local function insert(c, tag, flow_id, birth)
  local key = birth[11]
  local key_name = key ~= '' and ff.idempotency(tag, 'flow:' .. flow_id, key) or nil
  return ff.insert(c, birth, key_name, ff.take_group(c, birth[1]))
end

local function write(c, item, flow, births, numbers, is_first)
  local tag, flow_id, edges, groups = item[1], item[2], item[5], item[6]
  if is_first then begin_groups(c, groups) else grow_groups(c, groups, edges, numbers) end
  if #numbers > 0 then ff.insert_edges(c, tag, flow_id, edges, numbers) end
  ff.grow_flow(flow, #births, #numbers)
  if flow[@f.incomplete] and item[7] then
    flow[@f.incomplete], flow[@f.submit_until] = false, 0
  elseif flow[@f.incomplete] then
    flow[@f.submit_until] = c.now + ABANDONED_AFTER_MS
  end
  local ids, records = {}, {}
  for i = 1, #births do
    ids[i], records[i] = births[i][1], insert(c, tag, flow_id, births[i])
  end
  ff.count_members(flow, records)
  ff.keep_flow(c, tag, flow_id, flow)
  if ff.has_ended_members(flow) then
    settle_ended(c, tag, flow_id, edges, numbers)
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
  local refusal, births, numbers = look(c, item, found)
  if refusal then return refusal end
  local flow = found or item[3]
  if not found then flow[@f.created_at] = c.now end
  local more = write(c, item, flow, births, numbers, not found)
  return { 'created', ff.copied(flow), not found, false, more }
end

ff.register('graph', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, create_graph))
end)
