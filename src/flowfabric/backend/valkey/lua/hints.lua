-- Hints of a cluster: where a lane has work and when timers are due, kept in other slots than the
-- records. A call that changed the head of a queue, or the first timer of a partition, answers what
-- it is now, with a sequence; the client sends that after the call. Of two hints of a partition the
-- one with the higher sequence counts, whichever comes first.
--
-- ff1_hint: request {{'q', tag, sequence, rank or '', namespace, lane, set}, ...} of one lane, or
--   {{'t', tag, sequence, instant or ''}, ...}
-- ff1_peek: request @peek_queues, all tags of one node; answers {rank,
--   tag, member}, ... of the best that wait there, in order, the first of each tag always
-- ff1_heads: request {tag, ...}: answers the hints of these partitions again

local TIMERS = { $view.timers, $view.flow_timers, $view.budget_timers }

-- How many records of each queue a peek reads.
local PEEK = 32

local function sequence(c, tag)
  local found = c.sequences[tag]
  if found then return found end
  local key = $key.partition .. tag
  -- By the clock, so that a server that lost the last ones does not fall behind them.
  found = c.now * 1000
  local last = tonumber(call('HGET', key, 'hints') or '0')
  if last >= found then found = last + 1 end
  call('HSET', key, 'hints', found)
  c.sequences[tag] = found
  return found
end

local function queues_of(tag)
  return $key.hinted_queues .. tag
end

local function add_queue_hint(c, tag, head, namespace, lane, req_set)
  c.hints[#c.hints + 1] = { 'q', tag, sequence(c, tag), head or '', namespace, lane, req_set }
end

-- A queue whose first record is another one, or that was read.
function ff.hint_queue(c, queue, head)
  if head then call('SADD', queues_of(queue.tag), pack({ queue.namespace, queue.lane, queue.req_set })) end
  add_queue_hint(c, queue.tag, head, queue.namespace, queue.lane, queue.req_set)
end

local function add_timer_hint(c, tag, first)
  c.hints[#c.hints + 1] = { 't', tag, sequence(c, tag), first or '' }
end

-- The first instant of any timer of a partition.
function ff.first_timer(tag)
  local first
  for i = 1, #TIMERS do
    local head = call('ZRANGE', ff.view(tag, TIMERS[i]), 0, 0, 'WITHSCORES')
    local instant = head[2] and tonumber(head[2])
    if instant and (not first or instant < first) then first = instant end
  end
  return first
end

-- A partition got a timer. One behind its first changes nothing.
function ff.hint_timer(c, tag, due_at)
  local first = ff.first_timer(tag)
  if first and first >= due_at then add_timer_hint(c, tag, first) end
end

-- The timers of a partition were read.
function ff.correct_timer(c, tag)
  add_timer_hint(c, tag, ff.first_timer(tag))
end

local function is_news(key, tag, number)
  if number <= tonumber(call('HGET', key, tag) or '0') then return false end
  call('HSET', key, tag, number)
  return true
end

local function keep(key, tag, score)
  if score == '' then
    call('ZREM', key, tag)
  else
    call('ZADD', key, score, tag)
  end
end

local function apply_hint(_, hint)
  local tag, number, score = hint[2], hint[3], hint[4]
  if hint[1] == 't' then
    if is_news($config_key.timer_sequences, tag, number) then keep(ff.timer_hints(), tag, score) end
    return { true }
  end
  local namespace, lane, req_set = hint[5], hint[6], hint[7]
  local ready, numbers = ff.ready(namespace, lane, req_set), $lane_key.ready_sequences .. namespace .. ':' .. lane .. '}:' .. req_set
  if is_news(numbers, tag, number) then
    keep(ready, tag, score)
    local best = call('ZRANGE', ready, 0, 0, 'WITHSCORES')[2]
    keep(ff.hinted_queues(namespace, lane), req_set, best or '')
    -- Of a queue without work nothing stays. An older hint that comes after this names work that is gone, as
    -- whoever claims there finds.
    if not best then call('DEL', numbers) end
  end
  return { true }
end

ff.register('hint', function(_, args)
  local c = ff.open(args)
  return ff.answer(c, ff.each(c, c.request, apply_hint))
end)

local function before(one, other)
  if one[1] ~= other[1] then return one[1] < other[1] end
  if one[2] ~= other[2] then return one[2] < other[2] end
  return one[3] < other[3]
end

ff.register('peek', function(_, args)
  local c = ff.open(args)
  local namespace, lane, most = c.request[@peek_queues.namespace], c.request[@peek_queues.lane], c.request[@peek_queues.limit]
  local each = most < PEEK and most or PEEK
  local found = {}
  local tags = c.request[@peek_queues.tags]
  for i = 1, #tags do
    local walk = ff.walk_queues(ff.lane_queues(tags[i], namespace, lane), c.request[@peek_queues.queues])
    local queues = 0
    -- The best so many records are in the first so many queues.
    while walk.name and queues < each do
      local heads = call('ZRANGE', ff.queue(tags[i], walk.name, namespace, lane), 0, each - 1, 'WITHSCORES')
      for k = 1, #heads, 2 do found[#found + 1] = { tonumber(heads[k + 1]), tags[i], heads[k] } end
      queues = queues + 1
      ff.next_queue(walk)
    end
  end
  sort(found, before)
  local best, heads = {}, {}
  for i = 1, #found do
    local tag = found[i][2]
    if i <= most or not heads[tag] then best[#best + 1] = found[i] end
    heads[tag] = true
  end
  return ff.answer(c, best)
end, { 'no-writes', 'allow-cross-slot-keys' })

local function send_heads(c, tag)
  local queues = call('SMEMBERS', queues_of(tag))
  for i = 1, #queues do
    local namespace, lane, req_set = unpack(unpack_message(queues[i]))
    local head = call('ZSCORE', ff.lane_queues(tag, namespace, lane), req_set)
    if not head then call('SREM', queues_of(tag), queues[i]) end
    add_queue_hint(c, tag, head, namespace, lane, req_set)
  end
  local first = ff.first_timer(tag)
  if first then add_timer_hint(c, tag, first) end
end

ff.register('heads', function(_, args)
  local c = ff.open(args)
  for i = 1, #c.request do send_heads(c, c.request[i]) end
  return ff.close(c, false)
end, { 'allow-cross-slot-keys' })
