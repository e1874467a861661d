-- Hints of a cluster: where a lane has work and when timers are due, kept in other slots than the
-- records. A call that changed the head of a queue, or the first timer of a partition, answers what
-- it is now, with a sequence; the client sends that behind the call. Of two hints of a partition the
-- one with the higher sequence is right, whichever comes first.
--
-- ff1_hint: request {{'q', tag, sequence, rank or '', namespace, lane, set}, ...} of one lane, or
--   {{'t', tag, sequence, instant or ''}, ...}
-- ff1_peek: request @peek, all tags of one node; answers {rank,
--   tag, member}, ... of the best that wait there, in order, the first of each tag always
-- ff1_heads: request {tag, ...}: tells the heads of these partitions once more

local TIMERS = { $view.timers, $view.flow_timers, $view.budget_timers }

-- A look at many queues looks so far into each.
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

local function tell_queue(c, tag, head, namespace, lane, req_set)
  c.hints[#c.hints + 1] = { 'q', tag, sequence(c, tag), head or '', namespace, lane, req_set }
end

-- A queue this call added to or read. What it added behind the head changes nothing.
function ff.hint_queue(c, queue)
  local head = call('ZRANGE', queue.key, 0, 0, 'WITHSCORES')[2]
  if head and queue.topic then ff.notify(c, queue.topic) end
  if not queue.is_read and head and tonumber(head) < queue.rank then return end
  if head then call('SADD', queues_of(queue.tag), pack({ queue.namespace, queue.lane, queue.req_set })) end
  tell_queue(c, queue.tag, head, queue.namespace, queue.lane, queue.req_set)
end

local function tell_timer(c, tag, first)
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
  if first and first >= due_at then tell_timer(c, tag, first) end
end

-- Timers of a partition were looked at.
function ff.correct_timer(c, tag)
  tell_timer(c, tag, ff.first_timer(tag))
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

local function hear(_, hint)
  local tag, number, score = hint[2], hint[3], hint[4]
  if hint[1] == 't' then
    if is_news($config_key.timer_sequences, tag, number) then keep(ff.timer_hints(), tag, score) end
    return { true }
  end
  local namespace, lane, req_set = hint[5], hint[6], hint[7]
  if is_news($lane_key.ready_sequences .. namespace .. ':' .. lane .. '}:' .. req_set, tag, number) then
    keep(ff.ready(namespace, lane, req_set), tag, score)
    if score ~= '' then call('SADD', ff.sets(namespace, lane), req_set) end
  end
  return { true }
end

ff.register('hint', function(_, args)
  local c = ff.open(args)
  return ff.answer(c, ff.each(c, c.request, hear))
end)

local function before(one, other)
  if one[1] ~= other[1] then return one[1] < other[1] end
  if one[2] ~= other[2] then return one[2] < other[2] end
  return one[3] < other[3]
end

ff.register('peek', function(_, args)
  local c = ff.open(args)
  local namespace, lane, sets, most = c.request[@peek.namespace], c.request[@peek.lane], c.request[@peek.sets], c.request[@peek.limit]
  local each = most < PEEK and most or PEEK
  local found = {}
  local tags = c.request[@peek.tags]
  for i = 1, #tags do
    for j = 1, #sets do
      local key = ff.queue(tags[i], sets[j], namespace, lane)
      local heads = call('ZRANGE', key, 0, each - 1, 'WITHSCORES')
      for k = 1, #heads, 2 do found[#found + 1] = { tonumber(heads[k + 1]), tags[i], heads[k] } end
    end
  end
  sort(found, before)
  local shown, heads = {}, {}
  for i = 1, #found do
    local tag = found[i][2]
    if i <= most or not heads[tag] then shown[#shown + 1] = found[i] end
    heads[tag] = true
  end
  return ff.answer(c, shown)
end, { 'no-writes', 'allow-cross-slot-keys' })

local function tell_heads(c, tag)
  local queues = call('SMEMBERS', queues_of(tag))
  for i = 1, #queues do
    local namespace, lane, req_set = unpack(unpack_message(queues[i]))
    local head = call('ZRANGE', ff.queue(tag, req_set, namespace, lane), 0, 0, 'WITHSCORES')[2]
    if not head then call('SREM', queues_of(tag), queues[i]) end
    tell_queue(c, tag, head, namespace, lane, req_set)
  end
  local first = ff.first_timer(tag)
  if first then tell_timer(c, tag, first) end
end

ff.register('heads', function(_, args)
  local c = ff.open(args)
  for i = 1, #c.request do tell_heads(c, c.request[i]) end
  return ff.close(c, false)
end, { 'allow-cross-slot-keys' })
