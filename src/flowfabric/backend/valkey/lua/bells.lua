-- Doorbells, once per call: a channel for each on a standalone server, one for each partition in a
-- cluster.

function ff.ring(c, bell)
  c.rings[bell] = true
end

-- Bells of single executions: as a rule nobody listens, so they get their names only if somebody does.
-- They gather as execution and attempt in turn, false for the bell of its end.
function ff.ring_end(c, id)
  local own = c.own_rings
  local size = #own
  own[size + 1] = id
  own[size + 2] = false
end

function ff.ring_stream(c, id, attempt)
  local own = c.own_rings
  local size = #own
  own[size + 1] = id
  own[size + 2] = attempt
end

-- Who listens to a bell of an execution listens to this one too.
local WATCHED = $keys.BELL .. $keys.WATCHED

local function ring_own(c)
  local own, rings = c.own_rings, c.rings
  if not own[1] or not c.cluster and call('PUBSUB', 'NUMSUB', WATCHED)[2] == 0 then return end
  for i = 1, #own, 2 do
    rings[own[i + 1] and $base.STREAM_TOPICS .. own[i] .. ':' .. own[i + 1] or $base.END_TOPICS .. own[i]] = true
  end
end

-- Of many bells only those that somebody listens to are worth a command each.
local UNCHECKED_TOPICS, ASKED_AT_ONCE = 3, 1000

local function ring_those(names)
  for i = 1, #names do call('PUBLISH', names[i], '') end
end

local function ring_heard(names)
  for from = 1, #names, ASKED_AT_ONCE do
    local last = from + ASKED_AT_ONCE - 1
    local heard = call('PUBSUB', 'NUMSUB', unpack(names, from, last < #names and last or #names))
    for i = 1, #heard, 2 do
      if heard[i + 1] > 0 then call('PUBLISH', heard[i], '') end
    end
  end
end

function ff.ring_all(c)
  ring_own(c)
  if c.cluster then
    local names = {}
    for bell in pairs(c.rings) do names[#names + 1] = bell end
    if #names > 0 then call('SPUBLISH', $keys.BELL .. c.cluster, concat(names, '\n')) end
    return
  end
  local channels = {}
  for bell in pairs(c.rings) do channels[#channels + 1] = $keys.BELL .. bell end
  if #channels <= UNCHECKED_TOPICS then ring_those(channels) else ring_heard(channels) end
end
