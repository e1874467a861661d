-- Views follow from records: `ff.reindex` (rendered from VIEWS, below) compares what a record was
-- with what it is. Counters per lane and state stand in for the view by state. Hints say in which
-- partitions a lane has work and timers are set: never too late, perhaps too early; a claim and a
-- look at what is due put them right.

-- Members per command when many are added at once.
local MANY = 1000

-- Put a member into a view: at once, or with others while a call gathers them.
function ff.add(c, key, score, member)
  local adds = c.adds
  if not adds then
    call('ZADD', key, score, member)
    return
  end
  local list = adds[key]
  if not list then
    list = {}
    adds[key] = list
  end
  local size = #list
  list[size + 1], list[size + 2] = score, member
end

-- Put all that was gathered into its views, and gather no more.
function ff.write_adds(c)
  local adds = c.adds
  c.adds = nil
  for key, list in pairs(adds) do
    for from = 1, #list, 2 * MANY do
      local last = from + 2 * MANY - 1
      call('ZADD', key, unpack(list, from, last < #list and last or #list))
    end
  end
end

function ff.count(c, tag, r, by)
  local key = ff.counters(tag, r[@namespace])
  local counts = c.counts[key]
  if not counts then
    counts = {}
    c.counts[key] = counts
  end
  local state = r[@state]
  if state == 'blocked' then state = 'blocked:' .. r[@reason] end
  local field = r[@lane] .. ',' .. state
  counts[field] = (counts[field] or 0) + by
end

function ff.write_counts(c)
  for key, counts in pairs(c.counts) do
    for field, by in pairs(counts) do
      if by ~= 0 and call('HINCRBY', key, field, by) == 0 then call('HDEL', key, field) end
    end
  end
end

-- A lane's records by state, in its own order: those it offers stand in its queues, all others here.
function ff.resting_view(tag, r)
  local state = r[@state]
  if CLAIMABLE[state] and r[@grant_until] == 0 then return nil end
  if state == 'blocked' then state = 'blocked:' .. r[@reason] end
  return 'ff:v:' .. tag .. ':by_state:' .. state .. ':' .. r[@namespace] .. ':' .. r[@lane]
end

function ff.resting_order(r)
  local state = r[@state]
  if FINAL[state] then return r[@completed_at] end
  if state == 'active' then return r[@created_at] end
  if CLAIMABLE[state] then return r[@rank] end
  return r[@wake_at] ~= 0 and r[@wake_at] or LAST
end

-- A queue got a record of this rank.
function ff.queued(c, tag, r)
  local key = ff.queue(tag, r[@req_set], r[@namespace], r[@lane])
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
local function write_queue_hint(c, queue)
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
  for _, queue in pairs(c.queues) do write_queue_hint(c, queue) end
  c.queues = {}
end

function ff.write_hints(c)
  for _, queue in pairs(c.queues) do write_queue_hint(c, queue) end
  for tag, due_at in pairs(c.timers) do
    if c.cluster then
      ff.hint_timer(c, tag, due_at)
    else
      call('ZADD', ff.timer_hints(), 'LT', due_at, tag)
    end
  end
end

function ff.tag_view(tag, namespace, name, value)
  return 'ff:v:' .. tag .. ':tag:' .. namespace .. ':' .. #name .. ':' .. name .. ':' .. value
end

-- Tags are lists of name and value in turn, or ''. A record changes its tags rarely.
function ff.reindex_tags(tag, member, r, old, new)
  if old == new then return end
  local namespace, created_at = r[@namespace], r[@created_at]
  for i = 1, old == '' and 0 or #old, 2 do
    call('ZREM', ff.tag_view(tag, namespace, old[i], old[i + 1]), member)
  end
  for i = 1, new == '' and 0 or #new, 2 do
    call('ZADD', ff.tag_view(tag, namespace, new[i], new[i + 1]), created_at, member)
  end
end
