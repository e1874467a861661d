-- Views follow from records: `ff.reindex` (rendered from VIEWS, below) compares what a record was
-- with what it is. Counters per lane and state stand in for the view by state. Hints say in which
-- partitions a lane has work and timers are set: never too late, perhaps too early; a claim and a
-- look at what is due put them right.

-- Members per command at most.
local MANY = 1000

-- Changes of views gather until the call ends or somebody reads them; of several the last counts.
local function changes_of(c, key)
  local changes = {}
  c.moves[key] = changes
  c.has_moves = true
  return changes
end

function ff.add(c, key, score, member)
  local changes = c.moves[key] or changes_of(c, key)
  changes[member] = score
end

function ff.remove(c, key, member)
  local changes = c.moves[key] or changes_of(c, key)
  changes[member] = false
end

local function send(command, key, list, size, step)
  for from = 1, size, step do
    local last = from + step - 1
    call(command, key, unpack(list, from, last < size and last or size))
  end
end

local function write_view(_, key, changes)
  local added, adds, gone, leaves = {}, 0, {}, 0
  for member, score in pairs(changes) do
    if score then
      added[adds + 1], added[adds + 2] = score, member
      adds = adds + 2
    else
      leaves = leaves + 1
      gone[leaves] = member
    end
  end
  if leaves > 0 then send('ZREM', key, gone, leaves, MANY) end
  if adds > 0 then send('ZADD', key, added, adds, 2 * MANY) end
end

-- Must be called before a view is read that this call may have changed.
function ff.write_views(c)
  if not c.has_moves then return end
  local moves = c.moves
  c.moves, c.has_moves = {}, false
  ff.write_all(c, moves, write_view)
end

-- What a call needs of a partition and of each of its lanes again and again.
local function partition_of(c, tag)
  local found = c.partitions[tag]
  if not found then
    local prefix = 'ff:v:' .. tag
    found = { tag = tag, lanes = {}, workers = {} }
    for i = 1, #PARTITION_VIEWS do
      found[PARTITION_VIEWS[i]] = prefix .. ':' .. PARTITION_VIEWS[i]
    end
    c.partitions[tag] = found
  end
  return found
end
ff.partition_of = partition_of

local function lane_of(partition, r)
  local namespace, name = r[@namespace], r[@lane]
  local lanes = partition.lanes[namespace]
  if not lanes then
    lanes = {}
    partition.lanes[namespace] = lanes
  end
  local lane = lanes[name]
  if not lane then
    lane = { namespace = namespace, name = name, bell = 'lane:' .. namespace .. ':' .. name, queues = {}, resting = {}, counts = {} }
    lanes[name] = lane
  end
  return lane
end
ff.lane_of = lane_of

function ff.queue_in(partition, lane, r)
  local req_set = r[@req_set]
  local key = lane.queues[req_set]
  if not key then
    key = ff.queue(partition.tag, req_set, lane.namespace, lane.name)
    lane.queues[req_set] = key
  end
  return key
end

function ff.worker_in(partition, instance)
  local key = partition.workers[instance]
  if not key then
    key = ff.view(partition.tag, 'worker:' .. instance)
    partition.workers[instance] = key
  end
  return key
end

-- How a lane lists the record: its state, and what it waits for if it is blocked.
local function bucket_of(r)
  local state = r[@state]
  return state == 'blocked' and 'blocked:' .. r[@reason] or state
end
ff.bucket_of = bucket_of

local function write_partition(_, tag, partition)
  for namespace, lanes in pairs(partition.lanes) do
    for name, lane in pairs(lanes) do
      local counts = lane.counts
      lane.counts = {}
      for bucket, by in pairs(counts) do
        local key, field = ff.counters(tag, namespace), name .. ',' .. bucket
        if by ~= 0 and call('HINCRBY', key, field, by) == 0 then call('HDEL', key, field) end
      end
    end
  end
end

function ff.write_counts(c)
  ff.write_all(c, c.partitions, write_partition)
end

-- A lane's records by state, in its own order: those that wait stand in its queues, all others here. A lost
-- one stands in both: it is asked for by itself, and a queue may be long.
function ff.resting_in(partition, lane, r, bucket)
  if r[@state] == 'waiting' and r[@grant_until] == 0 then return nil end
  local key = lane.resting[bucket]
  if not key then
    key = 'ff:v:' .. partition.tag .. ':by_state:' .. bucket .. ':' .. lane.namespace .. ':' .. lane.name
    lane.resting[bucket] = key
  end
  return key
end

function ff.resting_order(r)
  local state = r[@state]
  if FINAL[state] then return r[@completed_at] end
  if state == 'active' then return r[@created_at] end
  if CLAIMABLE[state] then return r[@rank] end
  return r[@wake_at] ~= 0 and r[@wake_at] or LAST
end

-- A queue got a record of this rank.
function ff.queued(c, tag, r, key)
  local queue = c.queues[key]
  if not queue then
    queue = { key = key, tag = tag, namespace = r[@namespace], lane = r[@lane], req_set = r[@req_set] }
    c.queues[key] = queue
  end
  if not queue.rank or r[@rank] < queue.rank then queue.rank = r[@rank] end
end

function ff.timed(c, tag, due_at)
  local first = c.timers[tag]
  if not first or due_at < first then c.timers[tag] = due_at end
end

-- One hint per queue a call touched: a queue a claim has read is known exactly.
local function write_queue_hint(c, _, queue)
  if c.cluster then return ff.hint_queue(c, queue) end
  local rank = queue.rank
  if queue.is_read then
    local head = call('ZRANGE', queue.key, 0, 0, 'WITHSCORES')
    rank = head[2]
  end
  local ready = ff.ready(queue.namespace, queue.lane, queue.req_set)
  if not rank then
    call('ZREM', ready, queue.tag)
  elseif queue.is_read then
    call('ZADD', ready, rank, queue.tag)
  elseif call('ZADD', ready, 'LT', rank, queue.tag) == 1 then
    call('SADD', ff.sets(queue.namespace, queue.lane), queue.req_set)
  end
end

-- A claim in the same call finds by hints what the call itself has queued.
function ff.hint_queues(c)
  if c.cluster then return end
  ff.write_all(c, c.queues, write_queue_hint)
  c.queues = {}
end

local function write_timer_hint(c, tag, due_at)
  if c.cluster then
    ff.hint_timer(c, tag, due_at)
  else
    call('ZADD', ff.timer_hints(), 'LT', due_at, tag)
  end
end

function ff.write_hints(c)
  ff.write_all(c, c.queues, write_queue_hint)
  ff.write_all(c, c.timers, write_timer_hint)
end

function ff.tag_view(tag, namespace, name, value)
  return 'ff:v:' .. tag .. ':tag:' .. namespace .. ':' .. #name .. ':' .. name .. ':' .. value
end

-- Tags are lists of name and value in turn, or ''. A record changes its tags rarely.
function ff.reindex_tags(c, tag, member, r, old, new)
  if old == new then return end
  local namespace, created_at = r[@namespace], r[@created_at]
  for i = 1, old == '' and 0 or #old, 2 do
    ff.remove(c, ff.tag_view(tag, namespace, old[i], old[i + 1]), member)
  end
  for i = 1, new == '' and 0 or #new, 2 do
    ff.add(c, ff.tag_view(tag, namespace, new[i], new[i + 1]), created_at, member)
  end
end
