-- Names of keys. Everything of one partition has its tag, so that it lies in one slot; parts that
-- people chose (lanes, namespaces, texts) come last or are separated by their length.

-- An id `{fp:7}:<uuid>` has a tag and a member. Those of the last id are kept, because whatever a step
-- does with a record asks for them again.
local last_id, last_tag, last_member

local function divide(id)
  last_id, last_tag, last_member = id, sub(id, 1, -$ids.UUID_LENGTH - 2), sub(id, -$ids.UUID_LENGTH)
end

-- The tag `{fp:7}` of an execution id.
function ff.tag_of(id)
  if id ~= last_id then divide(id) end
  return last_tag
end

function ff.member_of(id)
  if id ~= last_id then divide(id) end
  return last_member
end

-- The tag of the views, counters and log that a record stands in: in a cluster that of its partition; a
-- single server keeps those of all partitions under one index tag, so that a call writes each of them once.
function ff.index_tag_of(c, id)
  return c.index_tag or ff.tag_of(id)
end

function ff.execution(id)
  return $key.execution .. id
end

function ff.documents(id)
  return $key.documents .. id
end

-- Log entries of a record that no attempt tells.
function ff.history(id)
  return $key.history .. id
end

function ff.journal(id)
  return $key.journal .. id
end

function ff.view(tag, name)
  return $key.view .. tag .. ':' .. name
end

function ff.queue(tag, req_set, namespace, lane)
  return $key.view .. tag .. ':' .. $view.claimable .. ':' .. req_set .. ':' .. namespace .. ':' .. lane
end

-- How many records of a namespace stand in each lane and state.
function ff.counters(tag, namespace)
  return $key.counters .. tag .. ':' .. namespace
end

function ff.log_of(tag)
  return $key.log .. tag
end

-- The queues of a lane that have work in an index tag, by the rank of the first record.
function ff.lane_queues(tag, namespace, lane)
  return $key.queues .. tag .. ':' .. namespace .. ':' .. lane
end

-- In a cluster, as hints say: the queues of a lane that have work anywhere, and where one of them has some, by
-- a rank none of it is below.
function ff.hinted_queues(namespace, lane)
  return $lane_key.queues .. namespace .. ':' .. lane .. '}'
end

function ff.ready(namespace, lane, req_set)
  return $lane_key.ready .. namespace .. ':' .. lane .. '}:' .. req_set
end

-- Which partitions have timers, by an instant none of them is below.
function ff.timer_hints()
  return $config_key.timer_hints
end

function ff.fairness(tag, namespace)
  return $key.fairness .. tag .. ':' .. namespace
end

-- An idempotency key; its scope is a flow or a namespace.
function ff.idempotency(tag, scope, key)
  return $key.idempotency .. tag .. ':' .. scope .. ':' .. key
end
