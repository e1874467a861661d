-- ff1_due: records, flows and budgets whose time has come, each by (due_at, id).
-- request: {limit, after due_at or false, after id, tags of partitions or false for all}; in a
--   cluster the tags are those of one node's partitions that hints name
-- answers: {records, flows, budgets, config, next due_at or false, next id}; a record is {row,
--   static, documents}, documents being name and number of the raw element in turn; a document of
--   config is {name, version, due_at, number of its raw body}

local PAGE = 16
-- So many of other partitions a walk passes over.
local LOOKS = 1000

-- The earlier of two moments, each of which may be none.
local function earlier(one, other)
  if not one or not other then return one or other or false end
  if one[1] ~= other[1] then return one[1] < other[1] and one or other end
  return one[2] <= other[2] and one or other
end

-- A walk over one view of a shelf, strictly behind a moment, up to now.
function ff.open_walk(key, after_due, after_id, now)
  return {
    key = key, now = now, offset = 0, from = after_due or '-inf', after_due = after_due, after_id = after_id,
    page = {}, at = 1, looks = LOOKS,
  }
end

-- Pass over what is not of the partitions a walk is for; whether it was. Behind very many of them the walk
-- ends, to be gone on with from there.
local function is_passed(walk, due_at, id)
  if not walk.wanted or walk.wanted[ff.tag_of(id)] then return false end
  walk.looks = walk.looks - 1
  if walk.looks == 0 then walk.page, walk.is_done, walk.stopped = {}, true, { due_at, id } end
  return true
end

local function next_of(walk)
  while true do
    local id = walk.page[walk.at]
    if id then
      local due_at = tonumber(walk.page[walk.at + 1])
      walk.at = walk.at + 2
      if (due_at ~= walk.after_due or id > walk.after_id) and not is_passed(walk, due_at, id) then
        walk.due_at, walk.id = due_at, id
        return true
      end
    elseif walk.is_done then
      walk.id = nil
      return false
    else
      walk.page = call('ZRANGE', walk.key, walk.from, walk.now, 'BYSCORE', 'LIMIT', walk.offset, PAGE, 'WITHSCORES')
      walk.at, walk.offset = 1, walk.offset + PAGE
      walk.is_done = #walk.page < 2 * PAGE
    end
  end
end

local function least_stop(walks)
  local first = false
  for i = 1, #walks do first = earlier(first, walks[i].stopped) end
  return first
end

-- The first `limit` of all walks in one order: due_at, id, ... and where that ended.
function ff.merge_due(walks, limit)
  local open, found = {}, {}
  for i = 1, #walks do
    if next_of(walks[i]) then open[#open + 1] = walks[i] end
  end
  while #found < limit do
    local best
    for i = 1, #open do
      local walk = open[i]
      if walk.id and (not best or walk.due_at < best.due_at
        or (walk.due_at == best.due_at and walk.id < best.id)) then
        best = walk
      end
    end
    if not best then return found, least_stop(walks) end
    found[#found + 1] = { best.due_at, best.id, best.key }
    next_of(best)
  end
  return found, found[#found]
end

-- Shelves and partitions that may have something due, all of those with budgets; hints that were too early
-- are put right.
local function due_tags(c, tags, wanted)
  if c.cluster then return tags end
  local hinted = call('ZRANGE', ff.timer_hints(), '-inf', c.now, 'BYSCORE')
  local found = {}
  for i = 1, #hinted do
    local tag = hinted[i]
    local first = ff.first_timer(tag)
    if not first then
      call('ZREM', ff.timer_hints(), tag)
    elseif first > c.now then
      call('ZADD', ff.timer_hints(), first, tag)
    elseif not wanted or wanted[tag] or tag == c.shelf or sub(tag, 1, 3) == '{b:' then
      found[#found + 1] = tag
    end
  end
  return found
end

-- Attach the documents whose names begin with a prefix.
local function attach_under(c, key, prefix, found)
  local names = call('HKEYS', key)
  for i = 1, #names do
    if sub(names[i], 1, #prefix) == prefix then
      found[#found + 1] = names[i]
      found[#found + 1] = ff.attach(c, call('HGET', key, names[i]))
    end
  end
end

local function documents_of(c, id, r)
  local found = {}
  local key = ff.documents(id)
  if r[@state] == $state.suspended then
    local document = call('HGET', key, $documents.SUSPENSION)
    if document then found = { $documents.SUSPENSION, ff.attach(c, document) } end
  end
  if r[@pending_until] > 0 and r[@pending_until] <= c.now then attach_under(c, key, $documents.WAITPOINT, found) end
  return found
end

local function shown(c, id)
  local found = call('HMGET', $key.execution .. id, $field.record, $field.static)
  local r = ff.decode(found[1])
  return { ff.attach(c, found[1]), ff.attach(c, found[2]), documents_of(c, id, r) }
end

-- A flow whose time has come, found in a partition's view: {flow id, flow}.
local function show_flow(c, place)
  local flow_id, view = place[2], place[3]
  return { flow_id, ff.flow(c, sub(view, 6, find(view, '}', 6, true)), flow_id) }
end

local function truths(names)
  if not names then return nil end
  local found = {}
  for i = 1, #names do found[names[i]] = true end
  return found
end

ff.register('due', function(_, args)
  local c = ff.open(args)
  local limit, after_due, after_id = c.request[@due.limit], c.request[@due.after_due_at], c.request[@due.after_id]
  local records, flows, budgets = {}, {}, {}
  local wanted = truths(not c.cluster and c.request[@due.tags])
  local tags = due_tags(c, c.request[@due.tags], wanted)
  for i = 1, #tags do
    local tag = tags[i]
    if not c.shelf or tag == c.shelf then
      records[#records + 1] = ff.open_walk(ff.view(tag, $view.timers), after_due, after_id, c.now)
      records[#records].wanted = wanted
    end
    if not wanted or wanted[tag] then
      flows[#flows + 1] = ff.open_walk(ff.view(tag, $view.flow_timers), after_due, after_id, c.now)
    end
    budgets[i] = ff.open_walk(ff.view(tag, $view.budget_timers), after_due, after_id, c.now)
  end
  local due_records, record_end = ff.merge_due(records, limit)
  local due_flows, flow_end = ff.merge_due(flows, limit)
  local due_budgets, budget_end = ff.merge_due(budgets, limit)
  local config, config_end = {}, false
  if not c.cluster then config, config_end = ff.due_config(c, limit, after_due, after_id) end
  for i = 1, #due_records do due_records[i] = shown(c, due_records[i][2]) end
  for i = 1, #due_flows do due_flows[i] = show_flow(c, due_flows[i]) end
  for i = 1, c.cluster and #tags or 0 do ff.correct_timer(c, tags[i]) end
  local last = earlier(earlier(record_end, flow_end), earlier(budget_end, config_end))
  return ff.close(c, { due_records, due_flows, due_budgets, config, last and last[1], last and last[2] })
end, { 'allow-cross-slot-keys' })
