-- What a group that has fired does to the siblings it no longer wants. None is cancelled while an edge is left to
-- settle: only then is it known whom nobody needs.

-- Whether the group an edge leads to has not fired and still waits for it.
-- mirrors core.settle._Walk._is_needed_for
local function is_needed(c, edge)
  if edge[@e.state] ~= $edge.open and edge[@e.state] ~= $edge.staged then return false end
  local group = ff.group(c, edge[@e.target])
  return group and group[@g.state] == $group.pending and group[@g.round] == edge[@e.round]
end

-- Cancel one sibling unless somebody needs it; how far its edges were looked at when the step became
-- full before that was known.
-- mirrors core.settle._Walk._cancel_source, core.settle._Walk._count_missed
local function cancel_source(c, w, edge, reason, within)
  local id = edge[@e.source]
  local source, row
  if edge[@e.state] ~= $edge.staged then source, row = ff.load_once(c, id) end
  if not source or FINAL[source[@state]] then
    if edge[@e.state] == $edge.open then ff.count_sibling(c, source and $settle.ALREADY_TERMINAL or $settle.NOT_FOUND) end
    return nil
  end
  local after = within
  while true do
    local ids, edges = ff.edges(w.tag, w.flow_id, ff.outgoing(id), after, $settle.PAGE)
    for i = 1, #edges do
      if is_needed(c, edges[i]) then return nil end
    end
    if #ids == 0 then break end
    after = ids[#ids]
    w.looks = w.looks - #ids
    if #ids < $settle.PAGE then break end
    if w.looks <= 0 then return after end
  end
  ff.follow(c, w, id, ff.write_member(c, w, id, row, source, ff.reasoned(c, CANCEL_SIBLING, reason)))
  ff.count_sibling(c, reason)
  return nil
end

-- Cancel the sources of the first group that wants that.
-- mirrors core.settle._Walk._cancel_next
function ff.cancel_next(c, w)
  local work = table.remove(w.cancels, 1)
  w.looks = w.looks - 1
  local ids, edges, size = ff.page_of(w, ff.incoming(work[@u.execution_id]), work, w.edges)
  local after, within = work[@u.after], work[@u.within]
  for i = 1, size do
    if not ff.has_room(c, w, CPU_LIMITS.cancel_siblings) then break end
    w.edges = w.edges - 1
    local looked = cancel_source(c, w, edges[i], work[@u.reason], within)
    if looked then
      table.insert(w.cancels, 1, ff.continued(work, after, looked))
      return
    end
    after, within = ids[i], ''
  end
  if #ids > 0 and after ~= ids[#ids] then table.insert(w.cancels, 1, ff.continued(work, after, '')) end
end
