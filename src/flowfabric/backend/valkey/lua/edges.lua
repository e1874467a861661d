-- The edges of flows, and the lists that they are found in.
--
-- ff:e:T:<flow>    hash  edge id -> the edge, packed
-- ff:el:T:<flow>   hash  name of a list -> the ids of its edges in their order, one behind the other;
--                        a '+' behind them: there are more of them in ff:em
-- ff:em:T:<flow>   zset  name of a list and edge id, of what came late to a list that is not short
--
-- A graph that comes at once has its lists in one piece, however long. One that grows edge by edge
-- must not have them written over and over again.

local ID = $ids.UUID_LENGTH
-- A list of at most so many edges is kept in one field.
local SHORT_LIST_EDGES = 64
-- Greater than every edge id.
local LAST_ID = 'g'
local FIELDS_PER_COMMAND = 2000
-- Edges per read, where all are wanted.
local PAGE = 1000

-- Names of lists: those that leave a member, those that reach it.
function ff.outgoing(id)
  return $graph_rows.OUTGOING .. ff.member_of(id)
end

function ff.incoming(id)
  return $graph_rows.INCOMING .. ff.member_of(id)
end

local function edges_key(tag, flow_id)
  return $key.edges .. tag .. ':' .. flow_id
end

local function lists_key(tag, flow_id)
  return $key.edge_lists .. tag .. ':' .. flow_id
end

local function more_key(tag, flow_id)
  return $key.late_edges .. tag .. ':' .. flow_id
end

-- ---- lists

local function id_at(text, place)
  return sub(text, ID * place - ID + 1, ID * place)
end

-- How many ids of a text are not behind this one.
local function places_to(text, edge_id)
  local low, high = 0, floor(#text / ID)
  while low < high do
    local middle = floor((low + high + 1) / 2)
    if id_at(text, middle) <= edge_id then low = middle else high = middle - 1 end
  end
  return low
end

-- The ids of a text behind `after`, so many at most.
local function ids_of(text, after, limit)
  if #text == ID and after == '' and limit > 0 then return { text } end
  local from = after == '' and 0 or places_to(text, after)
  local last, ids = floor(#text / ID), {}
  if last > from + limit then last = from + limit end
  for place = from + 1, last do ids[place - from] = id_at(text, place) end
  return ids
end

-- Two lists in order as one, so many at most.
local function merged(these, those, limit)
  local ids, i, j = {}, 1, 1
  while #ids < limit do
    local this, that = these[i], those[j]
    if not this and not that then break end
    if not that or (this and this < that) then
      ids[#ids + 1], i = this, i + 1
    else
      ids[#ids + 1], j = that, j + 1
    end
  end
  return ids
end

local function late_ids(tag, flow_id, list, after, limit)
  local from, to = '(' .. list .. after, '(' .. list .. LAST_ID
  local found = call('ZRANGE', more_key(tag, flow_id), from, to, 'BYLEX', 'LIMIT', 0, limit)
  for i = 1, #found do found[i] = sub(found[i], -ID) end
  return found
end

local function listed(tag, flow_id, list, after, limit)
  local text = call('HGET', lists_key(tag, flow_id), list)
  if not text then return {} end
  local ids = ids_of(text, after, limit)
  if sub(text, -1) ~= $graph_rows.MORE then return ids end
  return merged(ids, late_ids(tag, flow_id, list, after, limit), limit)
end

-- Put ids into a list that is there; its text if that changes. `late` gathers what goes beside it.
local function put_ids(list, text, news, late)
  local ids, fresh = ids_of(news, '', #news), {}
  for i = 1, #ids do
    if id_at(text, places_to(text, ids[i])) ~= ids[i] then fresh[#fresh + 1] = ids[i] end
  end
  if #fresh == 0 then return nil end
  local has_more = sub(text, -1) == $graph_rows.MORE
  if not has_more and #text + ID * #fresh <= ID * SHORT_LIST_EDGES then
    return concat(merged(ids_of(text, '', #text), fresh, #text + #news))
  end
  for i = 1, #fresh do late[#late + 1], late[#late + 2] = 0, list .. fresh[i] end
  return not has_more and text .. $graph_rows.MORE or nil
end

-- Send a command with many words in parts, each with an even number of them.
local function send(command, key, words)
  ff.in_parts(words, FIELDS_PER_COMMAND, function(from, last) call(command, key, unpack(words, from, last)) end)
end

local function texts_of(key, lists)
  local names, found = {}, {}
  for i = 1, #lists, 2 do names[#names + 1] = lists[i] end
  ff.in_parts(names, FIELDS_PER_COMMAND, function(from, last)
    local part = call('HMGET', key, unpack(names, from, last))
    for i = 1, #part do found[from + i - 1] = part[i] end
  end)
  return found
end

-- Put edges into lists: {name, text of ids in order, ...}. Those that are there stay.
local function put_lists(tag, flow_id, lists)
  local key, changes, late = lists_key(tag, flow_id), {}, {}
  local texts = texts_of(key, lists)
  for i = 1, #lists, 2 do
    local list, text = lists[i], texts[(i + 1) / 2]
    local changed = lists[i + 1]
    if text then changed = put_ids(list, text, changed, late) end
    if changed then changes[#changes + 1], changes[#changes + 2] = list, changed end
  end
  send('HSET', key, changes)
  send('ZADD', more_key(tag, flow_id), late)
end

-- ---- edges

-- Edges of a list by id, behind `after`: their ids, and the packed edges in the same order.
function ff.edge_rows(tag, flow_id, list, after, limit)
  local ids = listed(tag, flow_id, list, after, limit)
  if #ids == 0 then return ids, {} end
  return ids, call('HMGET', edges_key(tag, flow_id), unpack(ids))
end

-- All edges that lead to a member of a flow, as `ff.edge_rows` has them.
function ff.incoming_rows(flow_id, id)
  local ids, rows, after = {}, {}, ''
  while after do
    local more, packed = ff.edge_rows(ff.tag_of(id), flow_id, ff.incoming(id), after, PAGE)
    for i = 1, #more do ids[#ids + 1], rows[#rows + 1] = more[i], packed[i] end
    after = #more == PAGE and more[PAGE]
  end
  return ids, rows
end

-- Edges of a list as `ff.edge_rows` has them, unpacked.
function ff.edges(tag, flow_id, list, after, limit)
  local ids, rows = ff.edge_rows(tag, flow_id, list, after, limit)
  for i = 1, #rows do rows[i] = ff.array(rows[i]) end
  return ids, rows
end

-- Write an edge that may be new.
function ff.put_edge(c, tag, flow_id, edge_id, edge)
  if edge[@e.created_at] == 0 then edge[@e.created_at] = c.now end
  if call('HSET', edges_key(tag, flow_id), edge_id, pack(edge)) == 1 then
    local outgoing, incoming = ff.outgoing(edge[@e.source]), ff.incoming(edge[@e.target])
    put_lists(tag, flow_id, { $graph_rows.ALL, edge_id, outgoing, edge_id, incoming, edge_id })
  end
end

-- Write edges that are there already; fields are edge id, packed edge, ... in turn.
function ff.update_edges(tag, flow_id, fields)
  if #fields > 0 then call('HSET', edges_key(tag, flow_id), unpack(fields)) end
end

-- Write the edges of a new graph, and the lists they belong to. They come as the number of the argument
-- that has the first one's packed row, without the instant it ends with, and the id of each.
function ff.insert_edges(c, tag, flow_id, edges, lists)
  local fields, now, args, before = {}, pack(c.now), c.args, edges[1] - 2
  for i = 2, #edges do
    fields[#fields + 1], fields[#fields + 2] = edges[i], args[before + i] .. now
  end
  send('HSET', edges_key(tag, flow_id), fields)
  send('HSET', lists_key(tag, flow_id), lists)
end

function ff.drop_edges(tag, flow_id)
  call('UNLINK', edges_key(tag, flow_id), lists_key(tag, flow_id), more_key(tag, flow_id))
end
