-- ff1_apply: plans, each wholly or not at all, and a claim behind them if one is given.
-- request: {plans, claim request or false}; a plan is an array by the places of @p
-- answers: {{'applied', state, version, wake_at, gated, was, replayed, more, row, static}, or
--   {'refused', row, static}, ...}, claim answer; row and static are numbers of raw elements, 0
--   when there is none

local function put_documents(c, id, documents)
  local name = ff.documents(id)
  for i = 1, #documents, 2 do
    local field, number = documents[i], documents[i + 1]
    if number == 0 then
      call('HDEL', name, field)
    else
      local found = call('HGET', name, field)
      local first_at = found and sub(found, 1, find(found, ' ', 1, true) - 1) or c.now
      call('HSET', name, field, first_at .. ' ' .. c.now .. ' ' .. c.args[number])
    end
  end
end

local BLOBS = { input = 'in', result = 'out' }

-- Blobs a plan puts, as fields of the record's hash; those it drops are dropped.
local function blob_fields(c, id, blobs)
  local fields = {}
  if not blobs then return fields end
  for i = 1, #blobs, 2 do
    local field, number = BLOBS[blobs[i]], blobs[i + 1]
    if number == 0 then
      call('HDEL', 'ff:x:' .. id, field)
    else
      fields[#fields + 1], fields[#fields + 2] = field, c.args[number]
    end
  end
  return fields
end

local function applied(c, id, plan, r, row, was, replayed, more)
  local answer = { 'applied', r[@state], r[@version], r[@wake_at], r[@gated], was, replayed, more }
  if plan[@p.want] then answer[9], answer[10] = ff.show(c, id, row) end
  return answer
end

local function refused(c, id, row)
  if not row then return { 'refused', 0, 0 } end
  return { 'refused', ff.show(c, id, row) }
end

local function replayed(c, id, plan, r, row)
  local answer = applied(c, id, plan, r, row, r[@op_state], true, false)
  answer[2], answer[4] = r[@op_state], r[@op_wake_at]
  return answer
end

-- The state a plan would move a record to, if the table does not know that move.
function ff.bad_move(plan, r)
  local target, set = r[@state], plan[@p.set]
  for i = 1, #set, 2 do
    if set[i] == @state then target = set[i + 1] end
  end
  local moves = MOVES[plan[@p.rule]]
  return not (moves and moves[r[@state] .. '>' .. target]) and target
end

function ff.apply(c, plan)
  local id = plan[@p.target]
  local before, row = ff.load(id)
  if not before then return refused(c, id) end
  local op = ff.operation(plan)
  if op and before[@op_id] == op then return replayed(c, id, plan, before, row) end
  if not ff.fits(plan, before, c.now) or not ff.graph_fits(c, ff.tag_of(id), plan, before) then
    return refused(c, id, row)
  end
  local target = ff.bad_move(plan, before)
  if target then
    return { 'bug', plan[@p.rule] .. ': ' .. before[@state] .. ' -> ' .. target .. ' is not a move' }
  end
  local after, written = ff.perform(c, id, before, plan, blob_fields(c, id, plan[@p.blobs]))
  if plan[@p.documents] then put_documents(c, id, plan[@p.documents]) end
  if plan[@p.drop_journal] then call('DEL', ff.journal(id)) end
  local more
  after, written, more = ff.settle_plan(c, id, plan, before, after, written)
  return applied(c, id, plan, after, written, before[@state], false, more)
end

ff.register('apply', function(_, args)
  local c = ff.open(args)
  local answers = ff.each(c, c.request[1], ff.apply)
  local claimed = false
  if c.request[2] then
    ff.hint_queues(c)
    claimed = ff.claim(c, c.request[2])
  end
  return ff.close(c, { answers, claimed })
end)
