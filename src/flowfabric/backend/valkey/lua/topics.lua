-- Notifications, once per call: a channel for each on a standalone server, one for each partition in a
-- cluster.

local NOTHING = {}

-- Of a lane with the queue that has work.
function ff.notify(c, topic, queue)
  local queues = c.topics[topic]
  if not queue then
    c.topics[topic] = NOTHING
  elseif queues then
    queues[#queues + 1] = queue
  else
    c.topics[topic] = { queue }
  end
end

-- Topics of single executions: as a rule nobody subscribes, so their names are built only if somebody does.
-- They gather as execution and attempt in turn, false for the topic of its end.
function ff.notify_end(c, id)
  local own = c.own_topics
  local size = #own
  own[size + 1] = id
  own[size + 2] = false
end

function ff.notify_stream(c, id, attempt)
  local own = c.own_topics
  local size = #own
  own[size + 1] = id
  own[size + 2] = attempt
end

-- Whoever subscribes to a topic of an execution subscribes to this one too.
local WATCHED = $keys.CHANNEL .. $keys.WATCHED

local function notify_own(c)
  local own = c.own_topics
  if not own[1] or not c.cluster and call('PUBSUB', 'NUMSUB', WATCHED)[2] == 0 then return end
  for i = 1, #own, 2 do
    ff.notify(c, own[i + 1] and $base.STREAM_TOPICS .. own[i] .. ':' .. own[i + 1] or $base.END_TOPICS .. own[i])
  end
end

-- Of many topics only those with a subscriber are worth a command each.
local UNCHECKED_TOPICS, TOPICS_PER_COMMAND = 3, 1000

local function publish(c, topic)
  call('PUBLISH', $keys.CHANNEL .. topic, concat(c.topics[topic], '\n'))
end

local function publish_subscribed(c, names)
  local channels = {}
  for i = 1, #names do channels[i] = $keys.CHANNEL .. names[i] end
  ff.in_parts(channels, TOPICS_PER_COMMAND, function(from, last)
    local counted = call('PUBSUB', 'NUMSUB', unpack(channels, from, last))
    for i = 1, last - from + 1 do
      if counted[2 * i] > 0 then publish(c, names[from + i - 1]) end
    end
  end)
end

-- One message has the topics of a partition, those of lanes once for each queue.
local function publish_together(c)
  local names = {}
  for topic, queues in pairs(c.topics) do
    for i = 1, #queues do names[#names + 1] = topic .. $base.QUEUE .. queues[i] end
    if not queues[1] then names[#names + 1] = topic end
  end
  if names[1] then call('SPUBLISH', $keys.CHANNEL .. c.cluster, concat(names, '\n')) end
end

function ff.publish_topics(c)
  notify_own(c)
  if c.cluster then return publish_together(c) end
  local names = {}
  for topic in pairs(c.topics) do names[#names + 1] = topic end
  if #names > UNCHECKED_TOPICS then return publish_subscribed(c, names) end
  for i = 1, #names do publish(c, names[i]) end
end
