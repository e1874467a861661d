-- Reads of graphs; flows, edges and groups are answered as they are packed.
--
-- ff1_flow_read: request {{tag, flow id}, ...}; answers flow or false
-- ff1_flow_list: request {tag, after, limit}; answers {flow id, flow}, ... by id
-- ff1_flow_ages: request {partitions, after created_at or false, after flow id, limit, newest}; answers
--   {flow id, flow}, ... of all these partitions by (created_at, flow id)
-- ff1_flow_members: request {tag, flow id, states, after created_at or false, after id, limit};
--   answers {created_at, id, state, reason}, ... in that order
-- ff1_flow_edges: request {{tag, flow id, of, id, after, limit}, ...}; answers {{edge id, edge}, ...}
-- ff1_groups: request {target, ...}; answers group or false

local PAGE = 1000

-- The members of a flow in one state by creation, strictly behind a place if one is given: id and
-- created_at in turn.
function ff.members_behind(tag, flow_id, state, at, id, limit)
  if limit < 1 then return {} end
  local key, least, from = ff.view(tag, $view.flow .. ':' .. flow_id), FLOW_RANGES[state], 0
  if at then
    local before, itself = ff.rank_of(key, least + at, id)
    from = before + itself
  else
    from = ff.count_below(key, least)
  end
  local places, found = call('ZRANGE', key, from, from + limit - 1, 'WITHSCORES'), {}
  for i = 1, #places, 2 do
    local created_at = tonumber(places[i + 1]) - least
    if created_at >= $keys.FLOW_RANGE then break end
    found[i], found[i + 1] = places[i], created_at
  end
  return found
end

-- All edges that lead to a member, by edge id: ids, edges.
local function inbound(tag, flow_id, id)
  local all_ids, all, after = {}, {}, ''
  repeat
    local ids, edges = ff.edges(tag, flow_id, ff.incoming(id), after, PAGE)
    for i = 1, #ids do all_ids[#all_ids + 1], all[#all + 1] = ids[i], edges[i] end
    after = ids[#ids]
  until #ids < PAGE
  return all_ids, all
end

-- One per counted inbound edge, in edge-id order; results of named ones while they fit:
-- {edge id, source, data ref, outcome, satisfied_at, result, encoding, deferred}, where result is the
-- number of a raw element, 0 when there is none.
function ff.upstreams(c, id, results)
  local tag, r = ff.tag_of(id), ff.load(id)
  local room, found = $graph.UPSTREAM_BYTES, {}
  if not r or r[@flow_id] == '' then return found end
  local ids, edges = inbound(tag, r[@flow_id], id)
  for i = 1, #ids do
    local edge = edges[i]
    if edge[@e.state] ~= $edge.staged then
      local satisfied = edge[@e.state] == $edge.satisfied
      local one = {
        ids[i], edge[@e.source], edge[@e.data_ref], edge[@e.outcome],
        satisfied and edge[@e.resolved_at] or 0, 0, '', false,
      }
      local named = edge[@e.data_ref] ~= '' and edge[@e.data_ref] ~= $graph.INPUT
      local result = results and satisfied and named and call('HGET', $key.execution .. edge[@e.source], $field.result)
      if result then
        local source = ff.load(edge[@e.source])
        one[7], one[8] = source[@result_encoding], #result > room
        if not one[8] then
          room = room - #result
          one[6] = ff.attach(c, result)
        end
      end
      found[#found + 1] = one
    end
  end
  return found
end

-- A flow whose time has come, found in a partition's view: {flow id, flow}.
function ff.show_flow(c, place)
  local flow_id, view = place[2], place[3]
  return { flow_id, ff.flow(c, sub(view, 6, find(view, '}', 6, true)), flow_id) }
end

function ff.show_group(c, id)
  return ff.group(c, id) or false
end

function ff.show_incoming(_, id)
  local r, shown = ff.load(id), {}
  if not r or r[@flow_id] == '' then return shown end
  local ids, edges = inbound(ff.tag_of(id), r[@flow_id], id)
  for i = 1, #ids do shown[i] = { ids[i], edges[i] } end
  return shown
end

ff.register('flow_read', function(_, args)
  local c = ff.open(args)
  local answers = {}
  for i = 1, #c.request do answers[i] = ff.flow(c, c.request[i][@flow.tag], c.request[i][@flow.flow_id]) or false end
  return ff.answer(c, answers)
end, { 'no-writes' })

ff.register('flow_list', function(_, args)
  local c = ff.open(args)
  local tag, after, limit = c.request[@flows.tag], c.request[@flows.after], c.request[@flows.limit]
  local from = after == '' and '-' or '(' .. after
  local ids = call('ZRANGE', ff.view(tag, $view.flows), from, '+', 'BYLEX', 'LIMIT', 0, limit)
  for i = 1, #ids do ids[i] = { ids[i], ff.flow(c, tag, ids[i]) } end
  return ff.answer(c, ids)
end, { 'no-writes' })

-- The next of several lists of member, score, ... by (score, member), backwards if so asked.
local function next_place(lists, newest)
  local best
  for i = 1, #lists do
    local list = lists[i]
    local member = list.places[list.at]
    if not member and list.more then
      list.more(list)
      member = list.places[list.at]
    end
    if member then
      list.score = list.score or tonumber(list.places[list.at + 1])
      local is_before = not best or list.score < best.score
        or (list.score == best.score and member < best.places[best.at])
      if not best or is_before ~= newest then best = list end
    end
  end
  return best
end

local AGES = 32

local function more_ages(list)
  list.places = call(list.command, list.key, list.from, list.from + AGES - 1, 'WITHSCORES')
  list.at, list.from = 1, list.from + AGES
  if #list.places < 2 * AGES then list.more = nil end
end

-- The flows of a partition by age, read as far as they are asked for.
local function ages_of(tag, at, flow_id, newest)
  local key, from = ff.view(tag, $view.flows_by_age), 0
  if at then
    local before, itself = ff.rank_of(key, at, flow_id)
    from = newest and call('ZCARD', key) - before or before + itself
  end
  local command = newest and 'ZREVRANGE' or 'ZRANGE'
  return { tag = tag, key = key, command = command, from = from, places = {}, at = 1, more = more_ages }
end

ff.register('flow_ages', function(_, args)
  local c = ff.open(args)
  local partitions, at, flow_id = c.request[@ages.partitions], c.request[@ages.after_created_at], c.request[@ages.after_id]
  local limit, newest = c.request[@ages.limit], c.request[@ages.newest]
  local lists, found = {}, {}
  for i = 1, #partitions do lists[i] = ages_of($ids.TAG .. partitions[i] .. '}', at, flow_id, newest) end
  while #found < limit do
    local list = next_place(lists, newest)
    if not list then break end
    local next_id = list.places[list.at]
    found[#found + 1] = { next_id, ff.flow(c, list.tag, next_id) }
    list.at, list.score = list.at + 2, nil
  end
  return ff.answer(c, found)
end, { 'no-writes', 'allow-cross-slot-keys' })

ff.register('flow_members', function(_, args)
  local c = ff.open(args)
  local tag, flow_id, states, limit = c.request[@members.tag], c.request[@members.flow_id], c.request[@members.states], c.request[@members.limit]
  local lists, found = {}, {}
  for i = 1, #states do
    local places = ff.members_behind(tag, flow_id, states[i], c.request[@members.after_created_at], c.request[@members.after_id], limit)
    lists[i] = { state = states[i], places = places, at = 1 }
  end
  while #found < limit do
    local list = next_place(lists, false)
    if not list then break end
    local id, reason = list.places[list.at], ''
    if list.state == $state.blocked then reason = ff.load(id)[@reason] end
    found[#found + 1] = { list.score, id, list.state, reason }
    list.at, list.score = list.at + 2, nil
  end
  return ff.answer(c, found)
end, { 'no-writes' })

local function edges_of(query)
  local tag, flow_id, of, id = query[@edges.tag], query[@edges.flow_id], query[@edges.of], query[@edges.id]
  if of == 'edge' then
    local edge = ff.edge(tag, flow_id, id)
    return edge and { { id, edge } } or {}
  end
  if of ~= 'flow' and ff.tag_of(id) ~= tag then return {} end
  local list = ff.ALL_EDGES
  if of ~= 'flow' then list = of == 'source' and ff.outgoing(id) or ff.incoming(id) end
  local ids, edges = ff.edges(tag, flow_id, list, query[@edges.after], query[@edges.limit])
  for i = 1, #ids do ids[i] = { ids[i], edges[i] } end
  return ids
end

ff.register('flow_edges', function(_, args)
  local c = ff.open(args)
  local answers = {}
  for i = 1, #c.request do answers[i] = edges_of(c.request[i]) end
  return ff.answer(c, answers)
end, { 'no-writes' })

ff.register('groups', function(_, args)
  local c = ff.open(args)
  local answers = {}
  for i = 1, #c.request do answers[i] = ff.show_group(c, c.request[i]) end
  return ff.answer(c, answers)
end, { 'no-writes' })
