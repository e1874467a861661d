-- What the end of a member does to its children: those that end with their parent are cancelled, unless it has
-- completed. They count as edges of the step.

-- mirrors core.members.parent_end_reason
local function parent_end_reason(parent)
  local state = parent[@state]
  local reason = parent[@failure_reason]
  if state == $state.cancelled then reason = parent[@cancellation_reason] end
  if state == $state.skipped then reason = $members.SKIPPED end
  if #reason > $members.LONG_REASON then return reason end
  return $members.PARENT .. state .. ': ' .. reason
end

-- mirrors core.settle._Walk._cancel_tied
local function cancel_tied(c, w, id, reason, last_round)
  local flow = ff.flow(c, w.tag, w.flow_id)
  if not flow or ff.live_children(flow) == 0 then return end
  w.fresh[#w.fresh + 1] = { $work.cancel_children, id, '', reason, '' .. last_round }
end

-- mirrors core.settle._Walk.follow_children
function ff.follow_children(c, w, id, ended)
  if ended[@state] == $state.completed then return end
  cancel_tied(c, w, id, parent_end_reason(ended), ended[@round])
end

-- mirrors core.settle._Walk.follow_restart
function ff.follow_restart(c, w, id, restarted)
  cancel_tied(c, w, id, $members.PARENT_RESTARTED, restarted[@round] - 1)
end

-- mirrors core.settle._Walk.follow
function ff.follow(c, w, id, ended)
  w.ended[id] = ended
  w.fresh[#w.fresh + 1] = ff.work_of($work.settle, id)
  ff.follow_children(c, w, id, ended)
end

-- A child of a later round belongs to a parent that was replayed meanwhile. One that cannot be read is passed over:
-- neither its parent nor the others must wait for it.
-- mirrors core.settle._Walk._cancel_child
local function cancel_child(c, w, id, work)
  local readable, child, row = pcall(ff.load_once, c, id)
  if not readable or not child or FINAL[child[@state]] or child[@parent_round] > tonumber(work[@u.within]) then return end
  ff.follow(c, w, id, ff.write_member(c, w, id, row, child, ff.reasoned(c, CANCEL_CHILD, work[@u.reason])))
end

-- mirrors core.settle._Walk._cancel_children, core.graph.place_text, core.graph.place_in
function ff.cancel_children_of(c, w, work)
  local limit = w.edges < $settle.PAGE and w.edges or $settle.PAGE
  local after = work[@u.after]
  local blank = find(after, ' ', 1, true)
  ff.write_views(c)
  local places = ff.tied_behind(w.tag, work[@u.execution_id], blank and tonumber(sub(after, 1, blank - 1)), blank and sub(after, blank + 1), limit + 1)
  for i = 1, #places, 2 do
    if i > 2 * limit or not ff.has_room(c, w, CPU_LIMITS.cancel_siblings) then
      w.left[#w.left + 1] = ff.continued(work, after)
      return
    end
    w.edges = w.edges - 1
    after = places[i + 1] .. ' ' .. places[i]
    cancel_child(c, w, places[i], work)
  end
end
