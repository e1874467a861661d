-- Doorbells, once per call: a channel for each on a standalone server, one for each partition in a
-- cluster.

function ff.ring(c, bell)
  c.rings[bell] = true
end

function ff.ring_stream(c, id, attempt)
  c.rings['stream:' .. id .. ':' .. attempt] = true
end

-- Of many bells only those that somebody listens to are worth a command each.
local FEW, MANY = 3, 1000

local function ring_those(names)
  for i = 1, #names do call('PUBLISH', names[i], '') end
end

local function ring_heard(names)
  for from = 1, #names, MANY do
    local last = from + MANY - 1
    local heard = call('PUBSUB', 'NUMSUB', unpack(names, from, last < #names and last or #names))
    for i = 1, #heard, 2 do
      if heard[i + 1] > 0 then call('PUBLISH', heard[i], '') end
    end
  end
end

function ff.ring_all(c)
  if c.cluster then
    local names = {}
    for bell in pairs(c.rings) do names[#names + 1] = bell end
    if #names > 0 then call('SPUBLISH', 'ff:bell:' .. c.cluster, concat(names, '\n')) end
    return
  end
  local channels = {}
  for bell in pairs(c.rings) do channels[#channels + 1] = 'ff:bell:' .. bell end
  if #channels <= FEW then ring_those(channels) else ring_heard(channels) end
end
