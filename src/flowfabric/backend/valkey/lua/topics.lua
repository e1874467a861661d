-- Notifications, once per call: a channel for each on a standalone server, one for each partition in a
-- cluster.

function ff.notify(c, topic)
  c.topics[topic] = true
end

-- Topics of single executions: as a rule nobody subscribes, so their names are built only if somebody does.
-- They gather as execution and attempt in turn, false for the topic of its end.
function ff.ring_end(c, id)
  local own = c.own_topics
  local size = #own
  own[size + 1] = id
  own[size + 2] = false
end

function ff.ring_stream(c, id, attempt)
  local own = c.own_topics
  local size = #own
  own[size + 1] = id
  own[size + 2] = attempt
end

-- Whoever subscribes to a topic of an execution subscribes to this one too.
local WATCHED = $keys.CHANNEL .. $keys.WATCHED

local function ring_own(c)
  local own, topics = c.own_topics, c.topics
  if not own[1] or not c.cluster and call('PUBSUB', 'NUMSUB', WATCHED)[2] == 0 then return end
  for i = 1, #own, 2 do
    topics[own[i + 1] and $base.STREAM_TOPICS .. own[i] .. ':' .. own[i + 1] or $base.END_TOPICS .. own[i]] = true
  end
end

-- Of many topics only those with a subscriber are worth a command each.
local UNCHECKED_TOPICS, TOPICS_PER_COMMAND = 3, 1000

local function publish_all(names)
  for i = 1, #names do call('PUBLISH', names[i], '') end
end

local function publish_subscribed(names)
  ff.in_parts(names, TOPICS_PER_COMMAND, function(from, last)
    local counted = call('PUBSUB', 'NUMSUB', unpack(names, from, last))
    for i = 1, #counted, 2 do
      if counted[i + 1] > 0 then call('PUBLISH', counted[i], '') end
    end
  end)
end

function ff.publish_topics(c)
  ring_own(c)
  if c.cluster then
    local names = {}
    for topic in pairs(c.topics) do names[#names + 1] = topic end
    if #names > 0 then call('SPUBLISH', $keys.CHANNEL .. c.cluster, concat(names, '\n')) end
    return
  end
  local channels = {}
  for topic in pairs(c.topics) do channels[#channels + 1] = $keys.CHANNEL .. topic end
  if #channels <= UNCHECKED_TOPICS then publish_all(channels) else publish_subscribed(channels) end
end
