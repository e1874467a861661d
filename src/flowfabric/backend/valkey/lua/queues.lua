-- Which queues of a lane have work that a claim takes. A sorted set has the lane's queues that have work, by
-- the rank of the first record in each: of an index tag those there, written in the step; in a cluster also, in
-- the lane's own slot, those of all partitions, written by hints.
-- What a claim takes is @queues: ids of sets and kinds as one text each, separated by commas (no kinds: every
-- kind), or names of queues.
--
-- ff1_ready: request @find_queues; answers {whether too many queues of others were passed over, {partition, rank,
--   partition, rank, ...} of each queue that has work}, from the hints of a cluster

local PAGE = 16
-- Texts are kept between calls as tables of truths: a worker says the same every time.
local MOST_KEPT = 1000
local known, kept = {}, 0

local function truths(text)
  local found = known[text]
  if not found then
    if kept >= MOST_KEPT then known, kept = {}, 0 end
    found = {}
    for one in string.gmatch(text, '[^,]+') do found[one] = true end
    known[text], kept = found, kept + 1
  end
  return found
end

-- mirrors core.queues.takes
function ff.takes(queues, name)
  local dot = find(name, '.', 1, true)
  if not truths(queues[@queues.sets])[dot and sub(name, 1, dot - 1) or name] then return false end
  local kinds = queues[@queues.kinds]
  if not kinds then return true end
  return dot and truths(kinds)[sub(name, dot + 1, (find(name, '.', dot + 1, true) or 0) - 1)] or false
end

-- Those of the named queues that have work, the best first, and their ranks in turn.
local function ranked(key, names)
  local scores, found, page = call('ZMSCORE', key, unpack(names)), {}, {}
  for i = 1, #names do
    if scores[i] then found[#found + 1] = { tonumber(scores[i]), names[i] } end
  end
  sort(found, function(one, other) return one[1] < other[1] or one[1] == other[1] and one[2] < other[2] end)
  for i = 1, #found do page[2 * i - 1], page[2 * i] = found[i][2], found[i][1] end
  return page
end

-- A walk through the queues of a sorted set that a claim takes: `name` is the next one and `rank` its rank, nil
-- at the end. So many of others are passed over; when there are more, the claim has to name its queues.
function ff.walk_queues(key, queues)
  local names = queues[@queues.names]
  local most = queues[@queues.kinds] and $queues.MOST_FOREIGN or $queues.MOST_NAMED
  local walk = { key = key, queues = queues, next = 0, at = 1, left = most, is_done = names and true }
  walk.page = names and (names[1] and ranked(key, names) or {}) or {}
  ff.next_queue(walk)
  return walk
end

function ff.next_queue(walk)
  walk.name, walk.rank = nil, nil
  while true do
    local name = walk.page[walk.at]
    if name then
      walk.at = walk.at + 2
      if walk.queues[@queues.names] or ff.takes(walk.queues, name) then
        walk.name, walk.rank = name, tonumber(walk.page[walk.at - 1])
        return
      end
      walk.left = walk.left - 1
      if walk.left < 0 then
        walk.page, walk.is_done, walk.is_flooded = {}, true, walk.queues[@queues.kinds] and true
      end
    elseif walk.is_done then
      return
    else
      walk.page = call('ZRANGE', walk.key, walk.next, walk.next + PAGE - 1, 'WITHSCORES')
      walk.at, walk.next, walk.is_done = 1, walk.next + PAGE, #walk.page < 2 * PAGE
    end
  end
end

ff.register('ready', function(_, args)
  local c = ff.open(args)
  local namespace, lane = c.request[@find_queues.namespace], c.request[@find_queues.lane]
  local walk, found = ff.walk_queues(ff.hinted_queues(namespace, lane), c.request[@find_queues.queues]), {}
  while walk.name do
    found[#found + 1] = call('ZRANGE', ff.ready(namespace, lane, walk.name), 0, -1, 'WITHSCORES')
    ff.next_queue(walk)
  end
  return ff.answer(c, { walk.is_flooded or false, found })
end, { 'no-writes' })
