-- Settling: what the end of a member does to the graph behind it, in the same step.
--
-- Edges are settled first, breadth first, and siblings are cut when no edge is left. A step does so
-- many edges, copies so many bytes, takes so many looks and lasts so long; what is left over is remembered on
-- the flow as {work, member, after, note, within} and taken up again newest first.

local PAGE = BOUNDS.page
local WORK, MEMBER, AFTER, NOTE, WITHIN = 1, 2, 3, 4, 5

local function work_of(kind, member, note)
  return { kind, member, '', note or '', '' }
end

local function gone_on(work, after, within)
  return { work[WORK], work[MEMBER], after, work[NOTE], within or work[WITHIN] }
end

-- Perform one of the plans that settling writes by itself.
local function write_member(c, w, id, row, before, plan)
  local after = ff.perform_again(c, id, row, before, plan, ff.take_group(c, id))
  if after[@flow_id] ~= '' then ff.member_moved(c, w.tag, id, before, after) end
  return after
end

-- Release a member. As many as may be claimed by the same call are held back for it.
local function release(c, w, id, row, before)
  local plan = before[@wake_at] > c.now and RELEASE_LATER or RELEASE_NOW
  if plan ~= RELEASE_NOW or not c.claims or c.claims < 1 then return write_member(c, w, id, row, before, plan) end
  c.claims = c.claims - 1
  local group, after = ff.take_group(c, id), ff.step(before, plan, c.now)
  ff.hold(c, id, before, after, group and { 'g', group })
  if plan[@p.event] then ff.tell(c, id, plan[@p.event], before, after) end
  if after[@flow_id] ~= '' then ff.member_moved(c, w.tag, id, before, after) end
  return after
end

local function is_blocked(r)
  return r[@state] == 'blocked' and r[@reason] == 'dependencies'
end
ff.is_blocked = is_blocked

-- Release a member that waits for dependencies of which none is open any more; nil if one is.
local function release_if_open(c, tag, id, row, r)
  local group = ff.group(c, id)
  if group and group[@g.state] == 'pending' then
    if ff.resolved_edges(group) < group[@g.n] or group[@g.staged] ~= 0 then return nil end
    if group[@g.n] ~= 0 then
      group[@g.state], group[@g.fired_at] = 'satisfied', c.now
      ff.put_group(c, id, group)
    end
  end
  return release(c, { tag = tag }, id, row, r)
end
ff.release_if_open = release_if_open

-- ---- edges

local function fire(c, w, target, group)
  if group[@g.on_satisfied] == 'cancel_remaining' then
    local reason = 'sibling_quorum_' .. group[@g.state]
    group[@g.cancel_reason] = reason
    w.cuts[#w.cuts + 1] = work_of('cut', target, reason)
  end
  ff.put_group(c, target, group)
  local r, row = ff.read_once(c, ff.member_row(c, target))
  if not r or FINAL[r[@state]] then return end
  if group[@g.state] == 'impossible' then
    w.ended[target] = write_member(c, w, target, row, r, SKIP)
    w.fresh[#w.fresh + 1] = work_of('settle', target)
  elseif is_blocked(r) then
    release(c, w, target, row, r)
  end
end

-- Resolve one open edge; it is written with the rest of its page. One more outcome than a group has
-- edges is left without effect, and the item is answered by that.
local function resolve(c, w, edge, outcome, replayed)
  local target = edge[@e.target]
  local group = ff.group(c, target)
  if group and group[@g.round] ~= edge[@e.round] then group = nil end
  local contradiction = group and ff.overfull(group, target)
  if contradiction then
    c.violation = contradiction
    return false
  end
  local satisfied = ff.is_satisfied(edge, outcome)
  edge[@e.state] = satisfied and 'satisfied' or 'impossible'
  edge[@e.outcome], edge[@e.resolved_at] = outcome, c.now
  if not group then return true end
  local pending = group[@g.state] == 'pending'
  if pending and satisfied and edge[@e.data_ref] == 'input' then
    w.bytes = w.bytes - ff.copy_result(edge[@e.source], target)
  end
  ff.count_outcome(group, edge, outcome)
  local verdict = pending and ff.judge(group) or 'pending'
  if verdict == 'pending' or (replayed and verdict == 'impossible') then
    ff.put_group(c, target, group)
  else
    group[@g.state], group[@g.fired_at] = verdict, c.now
    fire(c, w, target, group)
  end
  return true
end

-- ---- the walk

local function has_room(c, w, bound)
  return w.edges > 0 and w.bytes > 0 and w.looks > 0 and not ff.is_full(c, bound, w.most - w.edges)
end

-- The next page of a list: one edge more than is settled tells whether there are others.
local function page_of(w, list, work, most)
  local limit = most < PAGE and most or PAGE
  local ids, edges = ff.edges(w.tag, w.flow_id, list, work[AFTER], limit + 1)
  return ids, edges, #ids < limit and #ids or limit
end

-- The first page of the edges that leave a member.
function ff.first_edges(tag, flow_id, id)
  return ff.edges(tag, flow_id, ff.outgoing(id), '', (BOUNDS.edges < PAGE and BOUNDS.edges or PAGE) + 1)
end

-- The next page of those, which may have been read ahead.
local function outgoing_page(c, w, work)
  local ahead = c.ahead
  c.ahead = nil
  if not ahead or ahead[1] ~= work[MEMBER] or work[AFTER] ~= '' or w.edges < w.most then
    return page_of(w, ff.outgoing(work[MEMBER]), work, w.edges)
  end
  local limit = w.edges < PAGE and w.edges or PAGE
  return ahead[2], ahead[3], #ahead[2] < limit and #ahead[2] or limit
end

-- Leave the rest of a list, if it has one, to what comes after the newer work.
local function go_on_behind(w, work, ids, after)
  local has_rest = #ids > 0 and after ~= ids[#ids]
  if has_rest then w.left[#w.left + 1] = gone_on(work, after) end
  return has_rest
end

local function settle_member(c, w, work)
  local source = w.ended[work[MEMBER]] or ff.load(work[MEMBER])
  -- A source replayed meanwhile settles its edges when it ends again.
  if not source or not FINAL[source[@state]] then return end
  local ids, edges, size = outgoing_page(c, w, work)
  local after, changed = work[AFTER], {}
  for i = 1, size do
    if not has_room(c, w, LONG.walk) then break end
    w.looks = w.looks - 1
    after = ids[i]
    local edge = edges[i]
    if edge[@e.state] == 'open' and ff.end_counts(edge, source) then
      w.edges = w.edges - 1
      if resolve(c, w, edge, OUTCOMES[source[@state]]) then
        changed[#changed + 1], changed[#changed + 2] = ids[i], pack(edge)
      end
    end
  end
  ff.update_edges(w.tag, w.flow_id, changed)
  go_on_behind(w, work, ids, after)
end

-- One inbound edge of a member; whether it has changed.
local function gather_edge(c, w, edge, replayed)
  if edge[@e.state] ~= 'open' then return false end
  local source = ff.load(edge[@e.source])
  if not source then return false end
  local changed = false
  if replayed and FINAL[source[@state]] then
    -- Of a source that has ended, only its next end counts for a replayed member.
    local past = source[@replay_count] + 1
    changed = edge[@e.past_ends] ~= past
    edge[@e.past_ends] = past
  end
  if ff.end_counts(edge, source) then
    w.edges = w.edges - 1
    return resolve(c, w, edge, OUTCOMES[source[@state]], replayed)
  end
  if changed then w.edges = w.edges - 1 end
  return changed
end

local function gather(c, w, work)
  local replayed = work[NOTE] == 'replayed'
  local ids, edges, size = page_of(w, ff.incoming(work[MEMBER]), work, w.looks)
  local after, changed = work[AFTER], {}
  for i = 1, size do
    if not has_room(c, w, LONG.walk) then break end
    w.looks = w.looks - 1
    after = ids[i]
    if gather_edge(c, w, edges[i], replayed) then
      changed[#changed + 1], changed[#changed + 2] = ids[i], pack(edges[i])
    end
  end
  ff.update_edges(w.tag, w.flow_id, changed)
  local has_rest = go_on_behind(w, work, ids, after)
  if replayed and not has_rest then
    -- It runs when no edge is open any more, whatever its group would say.
    local r, row = ff.load(work[MEMBER])
    if r and is_blocked(r) then release_if_open(c, w.tag, work[MEMBER], row, r) end
  end
end

-- ---- cutting

-- Whether the group an edge leads to has not fired and still waits for it.
local function is_needed(c, edge)
  if edge[@e.state] ~= 'open' and edge[@e.state] ~= 'staged' then return false end
  local group = ff.group(c, edge[@e.target])
  return group and group[@g.state] == 'pending' and group[@g.round] == edge[@e.round]
end

local function cut_for(c, reason)
  c.cuts = c.cuts or {}
  c.cuts[reason] = c.cuts[reason] or ff.filled(CUT, reason)
  return c.cuts[reason]
end

-- Cut one sibling unless somebody needs it; how far its edges were looked at when the step became
-- full before that was known.
local function cut_source(c, w, edge, reason, within)
  local id = edge[@e.source]
  local source, row
  if edge[@e.state] ~= 'staged' then source, row = ff.load_once(c, id) end
  if not source or FINAL[source[@state]] then
    if edge[@e.state] == 'open' then ff.count_sibling(c, source and 'already_terminal' or 'not_found') end
    return nil
  end
  local after = within
  while true do
    local ids, edges = ff.edges(w.tag, w.flow_id, ff.outgoing(id), after, PAGE)
    for i = 1, #edges do
      if is_needed(c, edges[i]) then return nil end
    end
    if #ids == 0 then break end
    after = ids[#ids]
    w.looks = w.looks - #ids
    if #ids < PAGE then break end
    if w.looks <= 0 then return after end
  end
  w.ended[id] = write_member(c, w, id, row, source, cut_for(c, reason))
  ff.count_sibling(c, reason)
  w.fresh[#w.fresh + 1] = work_of('settle', id)
  return nil
end

local function take_first(list)
  local first = list[1]
  for i = 1, #list do list[i] = list[i + 1] end
  return first
end

local function put_first(list, one)
  for i = #list, 1, -1 do list[i + 1] = list[i] end
  list[1] = one
end

local function cut_next(c, w)
  local work = take_first(w.cuts)
  w.looks = w.looks - 1
  local ids, edges, size = page_of(w, ff.incoming(work[MEMBER]), work, w.edges)
  local after, within = work[AFTER], work[WITHIN]
  for i = 1, size do
    if not has_room(c, w, LONG.cut) then break end
    w.edges = w.edges - 1
    local looked = cut_source(c, w, edges[i], work[NOTE], within)
    if looked then
      put_first(w.cuts, gone_on(work, after, looked))
      return
    end
    after, within = ids[i], ''
  end
  if #ids > 0 and after ~= ids[#ids] then put_first(w.cuts, gone_on(work, after, '')) end
end

-- Keep what is left on the flow, which wakes its timer; whether anything is left.
local function remember(c, w)
  local flow = ff.flow(c, w.tag, w.flow_id)
  local before = flow[@f.unsettled]
  if #w.left + #w.fresh - w.first + 1 + #w.cuts == 0 then return #before > 0 end
  local left = w.cuts
  for i = 1, #before do left[#left + 1] = before[i] end
  for i = 1, #w.left do left[#left + 1] = w.left[i] end
  for i = w.first, #w.fresh do left[#left + 1] = w.fresh[i] end
  flow[@f.unsettled] = left
  ff.keep_flow(c, w.tag, w.flow_id, flow)
  return true
end

-- `left` holds what earlier steps left, the newest last; `fresh` what this one came upon, in the
-- order of breadth; `ended` who has ended in it; `cuts` whose sources are to be cut once neither has anything.
local function open_walk(tag, flow_id, work, most)
  most = most or BOUNDS.edges
  local w = {
    tag = tag, flow_id = flow_id, left = {}, fresh = {}, first = 1, cuts = {}, ended = {},
    most = most, edges = most, bytes = BOUNDS.bytes, looks = BOUNDS.looks,
  }
  for i = 1, #work do
    local list = work[i][WORK] == 'cut' and w.cuts or w.left
    list[#list + 1] = work[i]
  end
  return w
end

local function settle_next(c, w)
  local work = w.left[#w.left]
  if work then
    w.left[#w.left] = nil
  else
    work = w.fresh[w.first]
    w.first = w.first + 1
  end
  w.looks = w.looks - 1
  if work[WORK] == 'gather' then
    gather(c, w, work)
  else
    settle_member(c, w, work)
  end
end

-- Work until nothing is left or the step is full; whether the flow has more to do.
local function run(c, w)
  local flow = ff.flow(c, w.tag, w.flow_id)
  if not flow then return false end
  -- Siblings wait for all edges, also for those that other steps have left over.
  local may_cut = true
  local unsettled = flow[@f.unsettled]
  for i = 1, #unsettled do may_cut = may_cut and unsettled[i][WORK] == 'cut' end
  while has_room(c, w, LONG.walk) do
    if #w.left > 0 or w.first <= #w.fresh then
      settle_next(c, w)
    elseif #w.cuts > 0 and may_cut then
      cut_next(c, w)
    else
      break
    end
  end
  return remember(c, w)
end

-- ---- what others call

-- Settle the edges that leave a member that just ended, no more of them than were looked at before.
function ff.settle_from(c, tag, flow_id, id, ended)
  local ahead = c.ahead
  local w = open_walk(tag, flow_id, { work_of('settle', id) }, ahead and ahead[1] == id and ahead[4])
  w.ended[id] = ended
  run(c, w)
end

-- Settle new or reopened edges whose source has ended already; items are {edge id, edge}. A replayed
-- member waits again for sources that did not succeed.
function ff.settle_edges(c, tag, flow_id, items, replayed)
  local work, seen = {}, {}
  for i = 1, #items do
    local edge = items[i][2]
    local target = edge[@e.target]
    if edge[@e.state] == 'open' and not seen[target] then
      seen[target] = true
      work[#work + 1] = work_of('gather', target, replayed and 'replayed')
    end
  end
  return #work > 0 and run(c, open_walk(tag, flow_id, work))
end

-- Cut members that came into being after a group had fired that no longer wants them.
function ff.cut_late(c, tag, flow_id, ids)
  local w = open_walk(tag, flow_id, {})
  for i = 1, #ids do
    local after, more = '', true
    while more do
      local edge_ids, edges = ff.edges(tag, flow_id, ff.outgoing(ids[i]), after, PAGE)
      more = #edge_ids > 0
      for j = 1, #edges do
        local group = ff.group(c, edges[j][@e.target])
        if group and group[@g.cancel_reason] ~= '' and group[@g.round] == edges[j][@e.round] then
          cut_source(c, w, edges[j], group[@g.cancel_reason], '')
          more = false
          break
        end
      end
      after = edge_ids[#edge_ids]
    end
  end
  return run(c, w)
end

-- Take up what earlier steps left; whether there is still more.
function ff.continue_flow(c, tag, flow_id)
  local flow = ff.flow(c, tag, flow_id)
  local work = flow[@f.unsettled]
  if #work == 0 then return false end
  flow[@f.unsettled] = ''
  ff.keep_flow(c, tag, flow_id, flow)
  local more = run(c, open_walk(tag, flow_id, work))
  ff.finish_flow(c, tag, flow_id)
  return more
end

-- Fail the item if it met a group that contradicts its edges.
function ff.check_violation(c)
  local violation = c.violation
  if violation then
    c.violation = nil
    error(violation, 0)
  end
end

-- End a step on a flow: close the flow if that was its last member; whether it has more to do.
function ff.end_flow_step(c, tag, flow_id)
  ff.finish_flow(c, tag, flow_id)
  ff.check_violation(c)
  local flow = ff.flow(c, tag, flow_id)
  return flow and ff.has_work(flow) or false
end
