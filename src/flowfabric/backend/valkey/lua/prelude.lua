-- Shared by every file behind it: the table `ff` of what files offer each other, the server's
-- functions under short names, and the life of one call.
--
-- The server offers its functions only while one of ours runs, so they are bound at the first call;
-- at load time a file may define functions and plain tables, nothing else. `@name` stands for the
-- place of a field in a packed array and is replaced when the library is assembled: `@name` of a
-- record, `@a.name` of an attempt, `@p.name` of a plan, `@b.name` of a budget, `@q.name` of a quota. What a
-- function is asked is declared in `requests.py`, and `@claim_order.lanes` is the place of a member there.
-- `$module.NAME` is a constant and `$kind.word` a word that Python has (see rendering.py).
-- Every file behind this one is a block of its own.

local ff = {}
-- The server's own names, before ours hide them.
local function globals()
  return unpack, pcall, setmetatable, tonumber, type, pairs, error
end

local call, pack, unpack_message, unpack_from, concat, sort, floor, sub, find, byte, processor_s
local unpack, pcall, setmetatable, tonumber, type, pairs, error
local RECORD_META, ATTEMPT_META

local function bind()
  if call then return end
  unpack, pcall, setmetatable, tonumber, type, pairs, error = globals()
  call = server.call
  pack, unpack_message, unpack_from = cmsgpack.pack, cmsgpack.unpack, cmsgpack.unpack_limit
  concat, sort = table.concat, table.sort
  floor = math.floor
  sub, find, byte = string.sub, string.find, string.byte
  processor_s = os.clock
  RECORD_META = { __index = RECORD_DEFAULTS }
  ATTEMPT_META = { __index = ATTEMPT_DEFAULTS }
end

-- A server without memory to spare refuses a call before it begins, unless it reads only or, by the
-- flag `allow-oom`, makes room.
function ff.register(name, run, flags)
  server.register_function({
    function_name = 'ff1_' .. name,
    callback = function(keys, args)
      bind()
      return run(keys, args)
    end,
    flags = flags or {},
  })
end

-- The server's clock, read once per call: milliseconds, and microseconds. A given instant is for tests.
local function clock(given)
  local time = call('TIME')
  local micros = tonumber(time[1]) * 1e6 + tonumber(time[2])
  if given == 0 then return floor(micros / 1000), micros end
  if not TEST_MODE then error('an instant was given outside of test mode') end
  return given, micros
end

-- Numbers the calls.
local serial = 0

-- A call. args[1] is packed: now (0: the server's own), the partition's tag in a cluster, and what the
-- mechanism itself is asked; the bodies it names by number are args[2] and on.
-- Answers gather in `out`: out[1] is the packed head, the others are raw.
function ff.open(args)
  local request = unpack_message(args[1])
  serial = serial + 1
  ff.held = {}
  ff.bound_sets()
  local now, micros = clock(request[@call.now])
  return {
    now = now,
    micros = micros,
    began = processor_s(),
    cluster = request[@call.partition],
    index_tag = not request[@call.partition] and INDEX_TAG,
    request = request[@call.request],
    args = args,
    shapes = {},
    records = {},
    again = {},
    out = { '' },
    size = 1,
    logs = {},
    topics = {},
    own_topics = {},
    serial = serial,
    changed_sets = {},
    repeated = {},
    moved = {},
    sets = {},
    counted = {},
    queues = {},
    timers = {},
    hints = {},
    sequences = {},
  }
end

-- What items of a call have in common, by the number of the argument it is packed in.
function ff.shape(c, number)
  local shape = c.shapes[number]
  if not shape then
    shape = unpack_message(c.args[number])
    c.shapes[number] = shape
  end
  return shape
end

-- Add a raw element to the answer; its number as the client counts, the head being 0.
function ff.attach(c, body)
  local size = c.size + 1
  c.size = size
  c.out[size] = body
  return size - 1
end

-- Do something with so many elements of a list at a time, from a place to another.
function ff.in_parts(list, most, run)
  for from = 1, #list, most do
    local last = from + most - 1
    run(from, last < #list and last or #list)
  end
end

-- End a call that only read.
function ff.answer(c, head)
  c.out[1] = pack({ c.now, head })
  return c.out
end

-- Write whatever follows from records, one entry after the other. One that cannot be written, because
-- somebody damaged its key, keeps none of the others back: what the call did to records is done. It is
-- sent beside the answer.
function ff.write_all(c, entries, write)
  local at
  local function go()
    for key, entry in next, entries, at do
      at = key
      write(c, key, entry)
    end
  end
  local ok, fault = pcall(go)
  while not ok do
    c.damages = c.damages or {}
    c.damages[#c.damages + 1] = type(fault) == 'table' and fault.err or fault
    ok, fault = pcall(go)
  end
end

-- End a call that wrote: what its items share is written once.
function ff.close(c, head)
  for id in pairs(ff.held) do ff.write_held(id) end
  ff.write_graph(c)
  ff.write_views(c)
  ff.write_logs(c)
  ff.write_counts(c)
  ff.write_hints(c)
  ff.publish_topics(c)
  c.out[1] = pack({ c.now, head, c.hints, c.siblings or c.damages and {}, c.damages })
  return c.out
end

-- Count what became of a sibling that was to be cancelled; sent beside the answer, if there was one.
function ff.count_sibling(c, disposition)
  local siblings = c.siblings or {}
  siblings[disposition] = (siblings[disposition] or 0) + 1
  c.siblings = siblings
end

-- The answer of an item that failed. One that raised a table with an `answer` has named it itself.
function ff.bug(fault)
  if type(fault) ~= 'table' then return { 'bug', fault } end
  return fault.answer or { 'bug', fault.err }
end

-- What each view that a call has changed will take at its end.
local WRITING_S = 0.00002

-- Whether a call keeps others out for so long already, or will by what it has gathered, that it should leave
-- the rest to another one. A bound is so many seconds, and how much is done whatever the time, or a slow
-- server would not get on.
function ff.is_full(c, bound, done)
  return done >= bound[2] and processor_s() - c.began + WRITING_S * #c.changed_sets >= bound[1]
end

-- The same between items that may have the same shape. Behind a change that was repeated nobody looks: it took less than
-- a look at the clock is worth.
function ff.is_long(c, bound, done)
  if c.is_repeating then
    c.is_repeating = false
    return false
  end
  return ff.is_full(c, bound, done)
end

-- Do each item by itself: one that fails is answered by `{'bug', text}` and the others proceed. With a
-- bound, items behind it are not answered.
function ff.each(c, items, run, bound)
  local answers = {}
  for i = 1, #items do
    local ok, answer = pcall(run, c, items[i])
    answers[i] = ok and answer or ff.bug(answer)
    if bound and ff.is_long(c, bound, i) then break end
  end
  return answers
end
