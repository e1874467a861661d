-- The graph around a record: what a member's step does to its flow, and what a plan does to edges.

-- Whether a plan's groups are still those it was decided from, and its flow is not cancelled.
function ff.graph_fits(c, tag, plan, r)
  return true
end

-- Carry a member's step over to its flow; `before` is nil for a new member.
function ff.member_moved(c, tag, id, before, after)
end

-- Count a new member in; a refusal when its flow is missing, cancelled or another namespace's.
function ff.join_flow(c, tag, r)
  return { 'refused', 0 }
end

-- Whether the cancellation of its flow ends the record.
function ff.is_covered(c, tag, r)
  return false
end

-- What a plan that was performed does to the graph: the record and row as they are afterwards, and
-- whether the flow has more to do.
function ff.settle_plan(c, id, plan, before, after, row)
  return after, row, false
end

-- What a member can read of its upstreams.
function ff.upstreams(c, id, results)
  return false
end

function ff.show_group(c, id)
  return false
end

function ff.show_incoming(c, id)
  return false
end

-- A flow that is due, as a number of its raw element; `due` is {due_at, flow id, key of the view}.
function ff.show_flow(c, due)
  return 0
end
