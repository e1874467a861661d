-- ff1_flows: flow plans, each wholly or not at all: 1. guards  2. flow  3. members  4. edges and
-- groups  5. settle  6. event  7. cancel what is covered  8. the flow's end.
-- request: {{tag, plan}, ...}; a plan is a packed array
-- answers: {'applied', flow, groups, cancelled, more} or {'refused', flow or false}; groups are
--   {target, group}, ...
--
-- ff1_settle: go on with what bounded steps left over on flows.
-- request: {{tag, flow id}, ...}; answers: whether another step would do more

-- A plan with every mark in its texts replaced.
function ff.filled(value, text)
  if type(value) == 'string' then
    local from, to = find(value, MARK, 1, true)
    return from and sub(value, 1, from - 1) .. text .. sub(value, to + 1) or value
  end
  if type(value) ~= 'table' then return value end
  local copy = {}
  for i = 1, #value do copy[i] = ff.filled(value[i], text) end
  return copy
end

-- ---- members a cancelled flow covers

-- End one member. One that cannot be read is passed over: the others must not wait for it.
-- mirrors core.flow_cancel._cancel
local function cancel_member(c, tag, id, state, plan)
  local readable, r, row = pcall(ff.load_once, c, id)
  if not readable or not r or r[@state] ~= state then return 0 end
  local after = ff.perform_again(c, id, row, r, plan)
  ff.member_moved(c, tag, id, r, after)
  return 1
end

-- End members of one state; how many it was, and whether that is enough for a step.
-- mirrors core.flow_cancel._cancel_in
local function cancel_in(c, tag, flow_id, state, most, plan)
  local ended, after_at, after = 0, nil, nil
  for _ = 1, floor($flow_cancel.LOOKS_PER_STEP / $flow_cancel.MEMBERS_PER_STEP) do
    ff.write_views(c)
    local places = ff.members_behind(tag, flow_id, state, after_at, after, most - ended)
    for i = 1, #places, 2 do
      ended = ended + cancel_member(c, tag, places[i], state, plan)
      if ff.is_full(c, LONG.walk, ended) then return ended, true end
    end
    if ended >= most or #places == 0 then break end
    after, after_at = places[#places - 1], places[#places]
  end
  return ended, ended >= most
end

-- End covered members without settling their edges; how many it was.
-- mirrors core.flow_cancel.cancel_covered
local function cancel_covered(c, tag, flow_id)
  local flow = ff.flow(c, tag, flow_id)
  local states = flow and ff.covered_states(flow)
  if not states then return 0 end
  local plan, ended, most = ff.filled(CANCEL, flow[@f.cancel_reason]), 0, $flow_cancel.MEMBERS_PER_STEP
  for i = 1, #states do
    local more, is_enough = cancel_in(c, tag, flow_id, states[i], most - ended, plan)
    ended = ended + more
    if is_enough then break end
  end
  return ended
end

-- ---- plans

local function member_fits(c, plan)
  local r = ff.load(plan[@p.target])
  return r and ff.fits(plan, r, c.now)
end

-- An edge never changes its ends.
local function edges_fit(tag, flow_id, items)
  for i = 1, #items do
    local stored, edge = ff.edge(tag, flow_id, items[i][1]), items[i][2]
    if stored and (stored[@e.source] ~= edge[@e.source] or stored[@e.target] ~= edge[@e.target]) then
      return false
    end
  end
  return true
end

local function fits(c, tag, plan, flow)
  if plan[@c.uncancelled] and flow[@f.cancelled_at] ~= 0 then return false end
  if plan[@c.version] and flow[@f.version] ~= plan[@c.version] then return false end
  if plan[@c.graph_revision] and flow[@f.graph_revision] ~= plan[@c.graph_revision] then return false end
  local requires, members = plan[@c.requires], plan[@c.members]
  for i = 1, #requires do
    if not member_fits(c, requires[i]) then return false end
  end
  for i = 1, #members do
    if not member_fits(c, members[i]) then return false end
  end
  return ff.groups_fit(c, plan[@c.graph]) and edges_fit(tag, plan[@c.flow_id], plan[@c.graph][1])
end

-- Tags are name, value, whether it is searched by, ... in turn.
local function put_tags(flow, news)
  if #news == 0 then return end
  local tags = flow[@f.tags] ~= '' and flow[@f.tags] or {}
  flow[@f.tags] = tags
  for i = 1, #news, 3 do
    local at = #tags + 1
    for j = 1, #tags, 3 do
      if tags[j] == news[i] then at = j end
    end
    tags[at], tags[at + 1], tags[at + 2] = news[i], news[i + 1], news[i + 2]
  end
end

local function write_flow(c, tag, plan, flow)
  local flow_id, edges, members = plan[@c.flow_id], plan[@c.graph][1], plan[@c.members]
  local added, joining = 0, 0
  for i = 1, #edges do
    if not ff.has_edge(tag, flow_id, edges[i][1]) then added = added + 1 end
  end
  for i = 1, #members do
    if members[i][@p.rule] == $rule.join then joining = joining + 1 end
  end
  ff.grow_flow(flow, joining, added)
  local set, stamp = plan[@c.set], plan[@c.stamp]
  for i = 1, #set, 2 do flow[set[i]] = set[i + 1] end
  for i = 1, #stamp do flow[stamp[i]] = c.now end
  put_tags(flow, plan[@c.tags])
  ff.keep_flow(c, tag, flow_id, flow)
end

local function write_member(c, tag, plan)
  local id = plan[@p.target]
  local before = ff.load(id)
  local after = ff.perform(c, id, before, plan)
  ff.member_moved(c, tag, id, before, after)
end

local function check_moves(members)
  for i = 1, #members do
    local plan = members[i]
    local r = ff.load(plan[@p.target])
    local target = ff.bad_move(plan, r)
    if target then error({ answer = { 'no move', plan[@p.rule], r[@state], target } }, 0) end
  end
end

local function groups_of(c, items)
  local found = {}
  for i = 1, #items do
    local group = ff.group(c, items[i][1])
    if group then found[#found + 1] = { items[i][1], ff.copied(group) } end
  end
  return found
end

-- What later items of the call do must not show in an earlier answer.
function ff.copied(value)
  if type(value) ~= 'table' then return value end
  local copy = {}
  for i = 1, #value do copy[i] = ff.copied(value[i]) end
  return copy
end

local function apply_flow(c, item)
  local tag, plan = item[1], item[2]
  local flow_id = plan[@c.flow_id]
  local found = ff.flow(c, tag, flow_id)
  local flow = found or plan[@c.create]
  if not flow or not fits(c, tag, plan, flow) then return { 'refused', found and ff.copied(found) or false } end
  check_moves(plan[@c.members])
  if not found then flow[@f.created_at] = c.now end
  write_flow(c, tag, plan, flow)
  for i = 1, #plan[@c.members] do write_member(c, tag, plan[@c.members][i]) end
  ff.write_edit(c, tag, flow_id, plan[@c.graph])
  ff.settle_edges(c, tag, flow_id, plan[@c.graph][1])
  if plan[@c.event] then ff.tell_flow(c, tag, flow_id, flow, plan[@c.event]) end
  local cancelled = plan[@c.cancels] and cancel_covered(c, tag, flow_id) or 0
  local more = ff.end_flow_step(c, tag, flow_id)
  return { 'applied', ff.copied(flow), groups_of(c, plan[@c.graph][2]), cancelled, more }
end

ff.register('flows', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, apply_flow, LONG.flows))
end)

-- One more bounded step of what a flow has left to do. A cancel comes first: what it ends, nothing
-- else has to release or skip.
-- mirrors core.flow_cancel.go_on_with
local function go_on(c, item)
  c.turn = (c.turn or 0) + 1
  local tag, flow_id = item[1], item[2]
  local flow = ff.flow(c, tag, flow_id)
  if not flow then return { 'settled', false } end
  if ff.covered_members(flow) > 0 and cancel_covered(c, tag, flow_id) > 0 then
    return { 'settled', ff.end_flow_step(c, tag, flow_id) }
  end
  if not ff.has_work(flow) and flow[@f.due_at] ~= ff.flow_due_at(flow, c.now) then
    ff.keep_flow(c, tag, flow_id, flow)
  end
  local more = ff.continue_flow(c, tag, flow_id)
  ff.check_violation(c)
  return { 'settled', more }
end

ff.register('settle', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, go_on, LONG.flows))
end)
