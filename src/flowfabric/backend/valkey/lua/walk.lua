-- A walk through a flow: edges to settle and siblings to cancel, one step after the other. A step settles so
-- many edges, copies so many bytes, reads so many records and lasts so long; what is left over is kept on the flow
-- and done by later steps, newest first.

function ff.work_of(kind, member, reason)
  return { kind, member, '', reason or '', '' }
end

function ff.continued(work, after, within)
  return { work[@u.work], work[@u.execution_id], after, work[@u.reason], within or work[@u.within] }
end

-- Perform one of the plans that settling writes by itself.
-- mirrors core.settle._write
function ff.write_member(c, w, id, row, before, plan)
  local after = ff.perform_again(c, id, row, before, plan, ff.take_group(c, id))
  if after[@flow_id] ~= '' then ff.member_moved(c, w.tag, id, before, after) end
  return after
end

-- A plan of the library with its reason, made once in a call.
function ff.reasoned(c, plan, reason)
  c.reasoned = c.reasoned or {}
  local made = c.reasoned[plan] or {}
  c.reasoned[plan], made[reason] = made, made[reason] or ff.filled(plan, reason)
  return made[reason]
end

-- Whether a step may do more.
-- mirrors core.settle._Walk._has_room
function ff.has_room(c, w, bound)
  return w.edges > 0 and w.bytes > 0 and w.looks > 0 and not ff.is_full(c, bound, w.most - w.edges)
end

-- The next page of a list: one edge more than is settled tells whether there are others.
function ff.page_of(w, list, work, most)
  local limit = most < $settle.PAGE and most or $settle.PAGE
  local ids, edges = ff.edges(w.tag, w.flow_id, list, work[@u.after], limit + 1)
  return ids, edges, #ids < limit and #ids or limit
end

-- Keep what is left on the flow, which wakes its timer; whether anything is left.
-- mirrors core.settle._Walk._remember
function ff.remember(c, w)
  local flow = ff.flow(c, w.tag, w.flow_id)
  local before = flow[@f.unsettled]
  if #w.left + #w.fresh - w.first + 1 + #w.cancels == 0 then return #before > 0 end
  local left = w.cancels
  for i = 1, #before do left[#left + 1] = before[i] end
  for i = 1, #w.left do left[#left + 1] = w.left[i] end
  for i = w.first, #w.fresh do left[#left + 1] = w.fresh[i] end
  flow[@f.unsettled] = left
  ff.keep_flow(c, w.tag, w.flow_id, flow)
  return true
end

-- `left` holds what earlier steps left, the newest last; `fresh` what this one found, in the
-- order of breadth; `ended` who has ended in it; `cancels` whose sources are cancelled once neither has anything.
-- mirrors core.settle._Walk.add
function ff.begin_walk(tag, flow_id, work, most)
  most = most or $settle.EDGES_PER_STEP
  local w = {
    tag = tag, flow_id = flow_id, left = {}, fresh = {}, first = 1, cancels = {}, ended = {},
    most = most, edges = most, bytes = $settle.BYTES_PER_STEP, looks = $settle.LOOKS_PER_STEP,
  }
  for i = 1, #work do
    local list = work[i][@u.work] == $work.cancel_siblings and w.cancels or w.left
    list[#list + 1] = work[i]
  end
  return w
end
