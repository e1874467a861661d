-- What a flow member can read of its upstreams: who fed it, how they ended, what they returned.
--
-- ff1_upstreams: request @read_upstreams; answers as `ff.upstreams` does

-- One per counted inbound edge, in edge-id order; results of named ones while they fit:
-- {edge id, source, data ref, outcome, satisfied_at, result, encoding, deferred}, where result is the
-- number of a raw element, 0 when there is none.
function ff.upstreams(c, id, results)
  local r = ff.load(id)
  local room, found = $graph.UPSTREAM_BYTES, {}
  if not r or r[@flow_id] == '' then return found end
  local ids, rows = ff.incoming_rows(r[@flow_id], id)
  for i = 1, #ids do
    local edge = ff.array(rows[i])
    if edge[@e.state] ~= $edge.staged then
      local satisfied = edge[@e.state] == $edge.satisfied
      local one = {
        ids[i], edge[@e.source], edge[@e.data_ref], edge[@e.outcome],
        satisfied and edge[@e.resolved_at] or 0, 0, '', false,
      }
      local named = edge[@e.data_ref] ~= '' and edge[@e.data_ref] ~= $graph.INPUT
      local result = results and satisfied and named and call('HGET', $key.execution .. edge[@e.source], $field.result)
      if result then
        local source = ff.load(edge[@e.source])
        one[7], one[8] = source[@result_encoding], #result > room
        if not one[8] then
          room = room - #result
          one[6] = ff.attach(c, result)
        end
      end
      found[#found + 1] = one
    end
  end
  return found
end

ff.register('upstreams', function(_, args)
  local c = ff.open(args)
  return ff.answer(c, ff.upstreams(c, c.request[@read_upstreams.id], c.request[@read_upstreams.results]))
end, { 'no-writes' })
