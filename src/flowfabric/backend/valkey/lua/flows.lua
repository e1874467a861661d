-- ff1_cancel_flow: cancel flows, and in the same step as many of the members they cover as a step may.
-- request: {@cancel_flow, ...}
-- answers: {'applied', flow, cancelled, more} or {'refused', flow or false}
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
-- mirrors core.apply._cancel
local function cancel_member(c, tag, id, state, plan, cancelled)
  local readable, r, row = pcall(ff.load_once, c, id)
  if not readable or not r or r[@state] ~= state then return 0 end
  local after = ff.perform_again(c, id, row, r, plan)
  ff.member_moved(c, tag, id, r, after)
  cancelled[#cancelled + 1], cancelled[#cancelled + 2] = id, after
  return 1
end

-- End members of one state; how many it was, and whether that is enough for a step.
-- mirrors core.apply._cancel_in
local function cancel_in(c, tag, flow_id, state, most, plan, cancelled)
  local ended, after_at, after = 0, nil, nil
  for _ = 1, floor($apply.LOOKS_PER_STEP / $apply.MEMBERS_PER_STEP) do
    ff.write_views(c)
    local places = ff.members_behind(tag, flow_id, state, after_at, after, most - ended)
    for i = 1, #places, 2 do
      ended = ended + cancel_member(c, tag, places[i], state, plan, cancelled)
      if ff.is_full(c, CPU_LIMITS.walk, ended) then return ended, true end
    end
    if ended >= most or #places == 0 then break end
    after, after_at = places[#places - 1], places[#places]
  end
  return ended, ended >= most
end

-- End members by the flow's cancel policy, without settling their edges; how many it was.
-- mirrors core.apply.cancel_members
local function cancel_members(c, tag, flow_id)
  local flow = ff.flow(c, tag, flow_id)
  local states = flow and ff.states_to_cancel(flow)
  if not states then return 0 end
  local plan, ended, most, cancelled = ff.filled(CANCEL, flow[@f.cancel_reason]), 0, $apply.MEMBERS_PER_STEP, {}
  for i = 1, #states do
    local more, is_enough = cancel_in(c, tag, flow_id, states[i], most - ended, plan, cancelled)
    ended = ended + more
    if is_enough then break end
  end
  if flow[@f.cancel_policy] == $policy.cancel_pending then ff.cancel_children(c, tag, flow_id, cancelled) end
  return ended
end

-- What later items of the call do must not show in an earlier answer.
function ff.copied(value)
  if type(value) ~= 'table' then return value end
  local copy = {}
  for i = 1, #value do copy[i] = ff.copied(value[i]) end
  return copy
end

local function fits(request, flow)
  if request[@cancel_flow.uncancelled] and flow[@f.cancelled_at] ~= 0 then return false end
  return not request[@cancel_flow.version] or flow[@f.version] == request[@cancel_flow.version]
end

local function cancel_flow(c, request)
  local tag, flow_id = request[@cancel_flow.tag], request[@cancel_flow.flow_id]
  local flow = ff.flow(c, tag, flow_id)
  if not flow or not fits(request, flow) then return { 'refused', flow and ff.copied(flow) or false } end
  flow[@f.cancel_policy], flow[@f.cancel_reason], flow[@f.cancelled_at] = request[@cancel_flow.policy], request[@cancel_flow.reason], c.now
  ff.keep_flow(c, tag, flow_id, flow)
  ff.emit_flow(c, tag, flow_id, flow, request[@cancel_flow.event])
  local cancelled = cancel_members(c, tag, flow_id)
  local more = ff.end_flow_step(c, tag, flow_id)
  return { 'applied', ff.copied(flow), cancelled, more }
end

ff.register('cancel_flow', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, cancel_flow, CPU_LIMITS.flows))
end)

-- One more bounded step of what a flow has left to do. A cancel comes first: what it ends, nothing
-- else has to release or skip.
-- mirrors core.apply.go_on_with
local function go_on(c, item)
  c.turn = (c.turn or 0) + 1
  local tag, flow_id = item[@one_flow.tag], item[@one_flow.flow_id]
  local flow = ff.flow(c, tag, flow_id)
  if not flow then return { 'settled', false } end
  if ff.may_cancel_members(flow) and cancel_members(c, tag, flow_id) > 0 then
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
  return ff.close(c, ff.each(c, c.request, go_on, CPU_LIMITS.flows))
end)
