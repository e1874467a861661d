-- Views follow from records: `ff.reindex` (rendered from VIEWS, below) compares what a record was
-- with what it is. Counters per lane and state stand in for the view by state. Hints say in which
-- partitions a lane has work and timers are set: never too late, perhaps too early; a claim and a
-- read of what is due put them right.
-- ff.reindex mirrors core.views.entries, core.views.bucket_of

local MEMBERS_PER_COMMAND = 1000
-- A list of changes up to this length is used again by the next call.
local SHORT = 128

-- A sorted set as calls change it. Changes gather until the call ends or somebody reads the set: those who
-- left, and those who came or moved, as score and member in turn. `serial` is the call they are of.
local function new_set(key)
  return { key = key, serial = 0, came = {}, come = 0, gone = {}, left = 0 }
end

local function begin_changes(c, set)
  set.serial, set.come, set.left = c.serial, 0, 0
  local changed = c.changed_sets
  changed[#changed + 1] = set
end

local function trace_move(trace, set, score)
  local sets = trace.sets
  sets[#sets + 1] = set
  sets[#sets + 1] = score
end

local function add(c, set, score, member)
  local trace = c.trace
  if trace then trace_move(trace, set, score) end
  if set.serial ~= c.serial then begin_changes(c, set) end
  local came, size = set.came, set.come
  came[size + 1] = score
  came[size + 2] = member
  set.come = size + 2
end

local function remove(c, set, member)
  local trace = c.trace
  if trace then trace_move(trace, set, false) end
  if set.serial ~= c.serial then begin_changes(c, set) end
  local size = set.left + 1
  set.gone[size] = member
  set.left = size
end

local function send(command, key, list, size, step)
  if size <= step then return call(command, key, unpack(list, 1, size)) end
  for from = 1, size, step do
    local last = from + step - 1
    call(command, key, unpack(list, from, last < size and last or size))
  end
end

local function write_set(_, _, set)
  local come, left = set.come, set.left
  set.serial = 0
  if left > 0 then send('ZREM', set.key, set.gone, left, MEMBERS_PER_COMMAND) end
  if come > 0 then send('ZADD', set.key, set.came, come, 2 * MEMBERS_PER_COMMAND) end
  if come + left > SHORT then set.came, set.gone = {}, {} end
end

-- Must be called before a view is read that this call may have changed.
function ff.write_views(c)
  if c.repeated[1] then ff.gather_repeated(c) end
  local changed = c.changed_sets
  if not changed[1] then return end
  c.changed_sets, c.moved = {}, {}
  ff.write_all(c, changed, write_set)
end

-- The views of an index tag and of its lanes are kept between calls, because making their names takes
-- longer than most of what is done with them. Beyond so many lanes and workers all are made anew.
local MOST_KEPT = 10000
local views_of, kept = {}, 0

local function sets_of(tag)
  local found = views_of[tag]
  if not found then
    local prefix = $key.view .. tag .. ':'
    found = { tag = tag, prefix = prefix, lanes = {}, workers = {} }
    for i = 1, #INDEX_VIEWS do
      found[INDEX_VIEWS[i]] = new_set(prefix .. INDEX_VIEWS[i])
    end
    views_of[tag] = found
  end
  return found
end

-- At the beginning of a call, when nobody holds any of them.
function ff.bound_sets()
  if kept > MOST_KEPT then views_of, kept = {}, 0 end
end

local function lane_of(views, namespace, name)
  local lanes = views.lanes[namespace]
  if not lanes then
    lanes = {}
    views.lanes[namespace] = lanes
  end
  local lane = lanes[name]
  if not lane then
    lane = {
      views = views, namespace = namespace, name = name, topic = $base.LANE_TOPICS .. namespace .. ':' .. name,
      suffix = ':' .. namespace .. ':' .. name, listed = ff.lane_queues(views.tag, namespace, name), queues = {}, resting = {}, counts = {}, serial = 0,
    }
    lanes[name] = lane
    kept = kept + 1
  end
  return lane
end

local function queue_in(lane, req_set)
  local queue = lane.queues[req_set]
  if not queue then
    queue = new_set(lane.views.prefix .. $view.claimable .. ':' .. req_set .. lane.suffix)
    queue.tag, queue.namespace, queue.lane, queue.req_set = lane.views.tag, lane.namespace, lane.name, req_set
    queue.listed, queue.topic = lane.listed, lane.topic
    lane.queues[req_set] = queue
    kept = kept + 1
  end
  return queue
end

local function worker_in(views, instance)
  local set = views.workers[instance]
  if not set then
    set = new_set(views.prefix .. $view.worker .. ':' .. instance)
    views.workers[instance] = set
    kept = kept + 1
  end
  return set
end

-- The counters of a lane change once per call.
local function counts_of(c, lane)
  if lane.serial ~= c.serial then
    lane.serial, lane.counts = c.serial, {}
    c.counted[#c.counted + 1] = lane
  end
  return lane.counts
end

-- Of a record that moves twice in a call, the first moves are written before the second.
local function begin_moves(c, id)
  if c.moved[id] then ff.write_views(c) end
  c.moved[id] = true
end

local function count_moves(c, lane, left, entered, by)
  local counts = counts_of(c, lane)
  if left then counts[left] = (counts[left] or 0) - by end
  if entered then counts[entered] = (counts[entered] or 0) + by end
end

-- Move a record as one like it was moved. Such records gather until views are written.
function ff.repeat_moves(c, id, change)
  begin_moves(c, id)
  c.is_repeating = true
  local size = change.size + 1
  if size == 1 then c.repeated[#c.repeated + 1] = change end
  change.members[size] = id
  change.size = size
end

local function add_all(c, set, score, members, size)
  if set.serial ~= c.serial then begin_changes(c, set) end
  local came, come = set.came, set.come
  for i = 1, size do
    came[come + 1] = score
    came[come + 2] = members[i]
    come = come + 2
  end
  set.come = come
end

local function remove_all(c, set, members, size)
  if set.serial ~= c.serial then begin_changes(c, set) end
  local gone, left = set.gone, set.left
  for i = 1, size do gone[left + i] = members[i] end
  set.left = left + size
end

function ff.gather_repeated(c)
  local repeated = c.repeated
  c.repeated = {}
  for i = 1, #repeated do
    local change = repeated[i]
    local sets, size = change.sets, change.size
    for at = 1, #sets, 2 do
      if sets[at + 1] then
        add_all(c, sets[at], sets[at + 1], change.members, size)
      else
        remove_all(c, sets[at], change.members, size)
      end
    end
    if change.lane then count_moves(c, change.lane, change.left, change.entered, size) end
    change.size = 0
  end
end

local function write_lane(_, _, lane)
  local key = ff.counters(lane.views.tag, lane.namespace)
  for bucket, by in pairs(lane.counts) do
    local field = lane.name .. ',' .. bucket
    if by ~= 0 and call('HINCRBY', key, field, by) == 0 then call('HDEL', key, field) end
  end
end

function ff.write_counts(c)
  ff.write_all(c, c.counted, write_lane)
end

-- A lane's records by state, in its own order: those that wait stand in its queues, all others here. A lost
-- one stands in both: it is asked for by itself, and a queue may be long.
local function resting_in(lane, r, bucket)
  if bucket == $state.waiting and r[@grant_until] == 0 then return nil end
  local set = lane.resting[bucket]
  if not set then
    set = new_set(lane.views.prefix .. $view.by_state .. ':' .. bucket .. lane.suffix)
    lane.resting[bucket] = set
  end
  return set
end

-- mirrors core.views.sort_of
local function resting_order(r)
  local state = r[@state]
  if FINAL[state] then return r[@completed_at] end
  if state == $state.active then return r[@created_at] end
  if CLAIMABLE[state] then return r[@rank] end
  return r[@wake_at] ~= 0 and r[@wake_at] or $views.LAST
end

-- A set whose name is of one call only.
local function set_of(c, key)
  local set = c.sets[key]
  if not set then
    set = new_set(key)
    c.sets[key] = set
  end
  return set
end

-- What a call knows of a queue it added to or reads.
local function queue_of(c, set)
  local queue = c.queues[set]
  if not queue then
    queue = {
      key = set.key, tag = set.tag, namespace = set.namespace, lane = set.lane, req_set = set.req_set,
      listed = set.listed, topic = set.topic,
    }
    c.queues[set] = queue
  end
  return queue
end

function ff.queue_of(c, tag, namespace, lane, req_set)
  return queue_of(c, queue_in(lane_of(sets_of(tag), namespace, lane), req_set))
end

-- A queue got a record of this rank. Whoever waits is notified if the call leaves anything there.
local function queued(c, set, rank, is_new)
  if c.trace then c.trace.is_queued = true end
  local queue = queue_of(c, set)
  queue.is_news = queue.is_news or is_new
  queue.is_unsure = queue.is_read
  if not queue.rank or rank < queue.rank then queue.rank = rank end
end

-- A record left a queue, or moved back in it: perhaps the first one.
local function unqueued(c, set)
  queue_of(c, set).is_left = true
end

local function timed(c, tag, due_at)
  local first = c.timers[tag]
  if not first or due_at < first then c.timers[tag] = due_at end
end
ff.timed = timed

-- The first rank of a queue as the call leaves it, nil when nothing is left; and whether it is another one
-- than was listed. What was added behind the first one changes nothing.
local function list_queue(queue)
  local rank = queue.rank
  if not (queue.is_read or queue.is_left) then
    return rank, call('ZADD', queue.listed, 'LT', 'CH', rank, queue.req_set) == 1
  end
  if queue.is_read then
    rank = ff.rank_left(queue)
  else
    rank = call('ZRANGE', queue.key, 0, 0, 'WITHSCORES')[2]
  end
  if not rank then return nil, call('ZREM', queue.listed, queue.req_set) == 1 end
  return rank, call('ZADD', queue.listed, 'CH', rank, queue.req_set) == 1
end

local function write_queue(c, _, queue)
  local rank, is_changed = list_queue(queue)
  if rank and queue.is_news then ff.notify(c, queue.topic, queue.req_set) end
  -- Whoever has read a queue is told what it has now.
  if c.cluster and (is_changed or queue.is_read) then ff.hint_queue(c, queue, rank) end
end

-- All in one command: their partitions are far fewer than a command may have words.
local function write_timer_hints(_, _, timers)
  local words = {}
  for tag, due_at in pairs(timers) do words[#words + 1], words[#words + 2] = due_at, tag end
  if words[1] then call('ZADD', ff.timer_hints(), 'LT', unpack(words)) end
end

function ff.write_hints(c)
  ff.write_all(c, c.queues, write_queue)
  if c.cluster then
    ff.write_all(c, c.timers, ff.hint_timer)
  else
    ff.write_all(c, { c.timers }, write_timer_hints)
  end
end

local function tag_set(c, views, namespace, name, value)
  return set_of(c, views.prefix .. $view.tag .. ':' .. namespace .. ':' .. #name .. ':' .. name .. ':' .. value)
end

-- Tags are lists of name and value in turn, or ''. A record changes its tags rarely.
local function reindex_tags(c, views, id, r, old, new)
  if old == new then return end
  local namespace, created_at = r[@namespace], r[@created_at]
  for i = 1, old == '' and 0 or #old, 2 do
    remove(c, tag_set(c, views, namespace, old[i], old[i + 1]), id)
  end
  for i = 1, new == '' and 0 or #new, 2 do
    add(c, tag_set(c, views, namespace, new[i], new[i + 1]), created_at, id)
  end
end
