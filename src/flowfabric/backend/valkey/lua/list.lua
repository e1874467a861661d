-- ff1_list: places of views, in order, over the partitions of one node.
-- request: @list_view: entries strictly behind (score, id), or from the beginning; due is what has a score up to
--   now. Of a flow's view, {name, where the range of a state begins} stands for the name, and scores are answered
--   from there
-- answers: {number of its name, whether it has more, id, score, ...} for each view that has any; together about
--   as many as asked for, and no more than that of one
--
-- It reads several partitions at once, so that reading all of them takes one call for each node.

local LEAST = 8

-- How many entries of a view have a lower score.
local function count_below(key, score)
  return call('ZCOUNT', key, '-inf', string.format('(%.0f', score))
end

-- How many entries of a view stand before (score, member), and whether it is there itself: many may share a
-- score.
local function rank_of(key, score, member)
  local rank = call('ZRANK', key, member)
  if rank and tonumber(call('ZSCORE', key, member)) == score then return rank, 1 end
  local low, high = count_below(key, score), call('ZCOUNT', key, '-inf', score)
  while low < high do
    local middle = floor((low + high) / 2)
    if call('ZRANGE', key, middle, middle)[1] < member then
      low = middle + 1
    else
      high = middle
    end
  end
  return low, 0
end

-- Find the first and the last place of what lies behind (score, id); whether there is anything.
local function narrow(view, newest, score, id)
  local key, bound = view.key, view.bound
  view.from = view.least ~= 0 and count_below(key, view.least) or 0
  view.to = (bound and count_below(key, bound) or call('ZCARD', key)) - 1
  if score and view.from <= view.to then
    local before, itself = rank_of(key, view.least + score, id)
    if newest and before <= view.to then view.to = before - 1 end
    if not newest and before + itself > view.from then view.from = before + itself end
  end
  return view.from <= view.to
end

local function view_of(tag, name, number, due_by)
  if type(name) == 'string' then return { key = ff.view(tag, name), number = number, least = 0, bound = due_by } end
  return { key = ff.view(tag, name[1]), number = number, least = name[2], bound = name[2] + $keys.FLOW_RANGE }
end

local function page_of(view, newest, most)
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
  local answer = { view.number, view.to - view.from + 1 > most }
  for i = 1, #places, 2 do
    answer[#answer + 1], answer[#answer + 2] = places[i], tonumber(places[i + 1]) - view.least
  end
  return answer
end

-- The members of a flow in one state by creation, strictly behind a place if one is given: id and
-- created_at in turn.
function ff.members_behind(tag, flow_id, state, at, id, limit)
  local view = view_of(tag, { $view.flow .. ':' .. flow_id, FLOW_RANGES[state] })
  if limit < 1 or not narrow(view, false, at, id) then return {} end
  return { unpack(page_of(view, false, limit), 3) }
end

-- The live children that end with their parent, in the same way.
function ff.tied_behind(tag, parent_id, at, id, limit)
  local view = view_of(tag, { $view.children .. ':' .. parent_id, CHILD_RANGES[1] })
  if limit < 1 or not narrow(view, false, at, id) then return {} end
  return { unpack(page_of(view, false, limit), 3) }
end

-- Add a view to the open ones if it has something behind the place.
function ff.open_view(open, request, view)
  if narrow(view, request[@list_view.newest], request[@list_view.after_score], request[@list_view.after_id]) then open[#open + 1] = view end
end

-- Every view of these partitions that has something behind the place.
function ff.open_views(c, request, tags)
  local names, due_by, open = request[@list_view.views], request[@list_view.is_due] and c.now + 1, {}
  for i = 1, #tags do
    for j = 1, #names do ff.open_view(open, request, view_of(tags[i], names[j], j, due_by)) end
  end
  return open
end

-- What open views have behind the place, as the answer says.
function ff.show_views(open, request)
  local most, found = request[@list_view.limit], {}
  local each = floor(2 * most / (#open > 0 and #open or 1)) + LEAST
  if each > most then each = most end
  for i = 1, #open do found[i] = page_of(open[i], request[@list_view.newest], each) end
  return found
end

ff.register('list', function(_, args)
  local c = ff.open(args)
  local open = ff.open_views(c, c.request, c.request[@list_view.tags])
  return ff.answer(c, ff.show_views(open, c.request))
end, { 'no-writes', 'allow-cross-slot-keys' })
