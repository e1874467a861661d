-- ff1_list: places of views, in order, over the partitions of one node.
-- request: {view names, newest first, score or false, how many, only what is due, partition, member,
--   partition, ...}: entries strictly behind (score, member), or from the beginning; an empty member
--   is before all that have the score, '~' behind them; due is what has a score up to now
-- answers: {partition, number of the view, whether it has more, member, score, ...} for each view that
--   has any; together about as many as asked for, and no more than that of one
-- ff1_rows: request {id, ...}; answers {row, static}, numbers of raw elements, or false, ...
-- ff1_sets: request {namespace, lane}; answers the requirement sets the lane ever queued by
--
-- The first two read several partitions at once, so that a look at all of them is one call for each node.

local LEAST = 8

-- How many entries of a view lie before a member among those that have this score.
local function before(key, score, member)
  local from, to = call('ZCOUNT', key, '-inf', '(' .. score), call('ZCOUNT', key, '-inf', score)
  while from < to do
    local middle = floor((from + to) / 2)
    if call('ZRANGE', key, middle, middle)[1] < member then from = middle + 1 else to = middle end
  end
  return from
end

-- The first and the last place of what lies behind (score, member), nil when nothing does.
local function span(key, newest, score, member, upto)
  local size = call('ZCARD', key)
  local from, to = 0, size - 1
  if size > 0 and score then
    local low
    if member == '' then
      low = call('ZCOUNT', key, '-inf', '(' .. score)
    elseif member == '~' then
      low = call('ZCOUNT', key, '-inf', score)
    else
      low = before(key, score, member)
      if not newest and tonumber(call('ZSCORE', key, member) or 'nan') == tonumber(score) then low = low + 1 end
    end
    if newest then to = low - 1 else from = low end
  end
  if upto then
    local due = call('ZCOUNT', key, '-inf', upto)
    if due - 1 < to then to = due - 1 end
  end
  if from > to then return nil end
  return from, to
end

-- Every view that has something behind the place.
local function open_views(c, request)
  local names, newest, score = request[1], request[2], request[3]
  local upto = request[5] and c.now
  local open = {}
  for i = 6, #request, 2 do
    local tag = '{fp:' .. request[i] .. '}'
    for j = 1, #names do
      local key = ff.view(tag, names[j])
      local from, to = span(key, newest, score, request[i + 1], upto)
      if from then open[#open + 1] = { key = key, partition = request[i], name = j, from = from, to = to } end
    end
  end
  return open
end

local function shown(view, newest, most)
  local places
  if newest then
    local first = view.to - most + 1
    if first < view.from then first = view.from end
    local size = call('ZCARD', view.key)
    places = call('ZRANGE', view.key, size - 1 - view.to, size - 1 - first, 'REV', 'WITHSCORES')
  else
    local last = view.from + most - 1
    places = call('ZRANGE', view.key, view.from, last < view.to and last or view.to, 'WITHSCORES')
  end
  local answer = { view.partition, view.name, view.to - view.from + 1 > most }
  for i = 1, #places, 2 do
    answer[#answer + 1], answer[#answer + 2] = places[i], tonumber(places[i + 1])
  end
  return answer
end

ff.register('list', function(_, args)
  local c = ff.open(args)
  local newest, most = c.request[2], c.request[4]
  local open, found = open_views(c, c.request), {}
  local each = floor(2 * most / (#open > 0 and #open or 1)) + LEAST
  if each > most then each = most end
  for i = 1, #open do found[i] = shown(open[i], newest, each) end
  return ff.answer(c, found)
end, { 'no-writes', 'allow-cross-slot-keys' })

ff.register('rows', function(_, args)
  local c = ff.open(args)
  local found = {}
  for i = 1, #c.request do
    local stored = call('HMGET', ff.execution(c.request[i]), 'r', 's')
    found[i] = stored[1] and { ff.attach(c, stored[1]), ff.attach(c, stored[2]) } or false
  end
  return ff.answer(c, found)
end, { 'no-writes', 'allow-cross-slot-keys' })

ff.register('sets', function(_, args)
  local c = ff.open(args)
  return ff.answer(c, call('SMEMBERS', ff.sets(c.request[1], c.request[2])))
end, { 'no-writes' })
