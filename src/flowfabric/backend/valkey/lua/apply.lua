-- ff1_apply: plans, each wholly or not at all, and a claim behind them if one is given, also where the rest of
-- the plans is left to another call: what the first ones released is taken at once.
-- request: @applying; plans are @own, one behind the other; a shape is an array by the places of @p
-- answers, of the first plans only if they took long: {{'applied', state, version, wake_at, gated, was,
--   replayed, more, row, static}, or {'refused', row, static}, ...}, claim answer; row and static are
--   numbers of raw elements, 0 when there is none. The version alone stands for a plan that moved an active
--   record as it said, with nothing else to answer.

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

local STRIDE = @own.input_argument

-- Blobs a plan puts, as fields of the record's hash; those it drops are dropped.
local function blob_fields(c, id, result, input)
  if result == 0 then call('HDEL', $key.execution .. id, $field.result) end
  if input == 0 then call('HDEL', $key.execution .. id, $field.input) end
  if result > 0 and input > 0 then return { $field.result, c.args[result], $field.input, c.args[input] } end
  if result > 0 then return { $field.result, c.args[result] } end
  return input > 0 and { $field.input, c.args[input] } or nil
end

-- The shape of the plan at a place. Only what is a fence, a target and an operation, which are a plan's own, may
-- be repeated; a result may be put, an input is left alone.
local function shape_of(c, values, at)
  local shape = ff.shape(c, values[at + @own.shape_argument])
  if shape.changes == nil then shape.changes = #shape <= @p.close_stream and {} end
  return shape, shape.changes and values[at + @own.lease_id] ~= '' and values[at + @own.result_argument] ~= 0 and values[at + @own.input_argument] == -1
end

-- The plan at a place. Plans of one shape share a table: each is done with before the next is looked at.
local function plan_at(c, shape, values, at)
  local lease_id, op = values[at + @own.lease_id], values[at + @own.op]
  shape[@p.target], shape[@p.fence], shape[@p.op] = values[at + @own.target], false, op ~= '' and op
  if lease_id ~= '' then
    local fence = c.fence
    fence[1], fence[2], fence[3] = lease_id, values[at + @own.lease_epoch], values[at + @own.attempt_id]
    shape[@p.fence] = fence
  end
  return shape
end

local function applied(c, id, plan, r, row, was, replayed, more)
  if was == $state.active and r[@state] == plan.aim and r[@wake_at] == 0 and not r[@gated]
    and not (replayed or more or plan[@p.want]) then
    return r[@version]
  end
  local answer = { 'applied', r[@state], r[@version], r[@wake_at], r[@gated], was, replayed, more }
  if plan[@p.want] then answer[9], answer[10] = ff.show(c, id, row) end
  return answer
end

local function replayed(c, id, plan, r, row)
  local answer = applied(c, id, plan, r, row, r[@op_state], true, false)
  answer[2], answer[4] = r[@op_state], r[@op_wake_at]
  return answer
end

-- The state a plan would move a record to, if the table does not know that move; and that state in any
-- case.
-- mirrors core.states.is_move
function ff.bad_move(plan, r)
  local state = r[@state]
  local target, moves = ff.prepared(plan).aim or state, MOVES[plan[@p.rule]]
  moves = moves and moves[state]
  return not (moves and moves[target]) and target, target
end

-- Apply a plan by the rules.
-- mirrors core.apply.apply, core.transition.is_repeat
local function decide(c, id, plan, row, values, at)
  local before, op = ff.decode(row), plan[@p.op]
  -- No other record has the shape of a flow's member.
  if before[@flow_id] ~= '' then c.trace = nil end
  if op and before[@op_id] == op then return replayed(c, id, plan, before, row) end
  if not ff.fits(plan, before, c.now) or not ff.graph_fits(c, ff.tag_of(id), plan, before) then
    return ff.refused(c, id, row)
  end
  local is_bad, target = ff.bad_move(plan, before)
  if is_bad then return { 'no move', plan[@p.rule], before[@state], target } end
  if before[@flow_id] ~= '' and not plan[@p.unsettled] then ff.preflight(c, ff.tag_of(id), id, before, target) end
  local after, written = ff.perform(c, id, before, plan, blob_fields(c, id, values[at + @own.result_argument], values[at + @own.input_argument]))
  if plan[@p.documents] then put_documents(c, id, plan[@p.documents]) end
  ff.drop_journal(id, plan[@p.drop_journal_from])
  if plan[@p.steps] then ff.add_steps(c, id, plan[@p.steps]) end
  local more
  after, written, more = ff.settle_plan(c, id, plan, before, after, written)
  return applied(c, id, plan, after, written, before[@state], false, more), after
end

-- Apply a plan and trace it for records of the same shape.
local function decide_first(c, id, plan, row, rest, values, at)
  ff.begin_trace(c)
  local answer, after = decide(c, id, plan, row, values, at)
  if type(answer) ~= 'number' or after[@flow_id] ~= '' or after[@attempt_id] ~= plan[@p.fence][3] then
    c.trace = nil
    return answer
  end
  local change = ff.keep_trace(c, plan.changes, ff.index_tag_of(c, id), rest)
  if change then change.answer, change.keeps_lease = answer, after[@lease_id] ~= '' end
  return answer
end

-- The change the plan made to a record like this one, if this one fits the plan too: nil when there is none.
local function known_to_fit(c, index_tag, shape, rest, attempt_id, lease_id, op_id, values, at)
  local change = ff.known_change(shape.changes, index_tag, rest)
  if change and lease_id == values[at + @own.lease_id] and change.epoch == values[at + @own.lease_epoch] and attempt_id == values[at + @own.attempt_id]
    and (values[at + @own.op] == '' or op_id ~= values[at + @own.op]) and ff.may_emit_again(c, index_tag, change) then
    return change
  end
end

local function apply(c, values, at)
  local id, shape, may_repeat = values[at + @own.target], shape_of(c, values, at)
  local row = ff.row(id)
  if not row then return ff.refused(c, id) end
  if not (may_repeat and values[STRIDE + 1]) then
    return (decide(c, id, plan_at(c, shape, values, at), row, values, at))
  end
  local index_tag, rest, attempt_id, lease_id, op_id = ff.index_tag_of(c, id), ff.divided(row)
  local change = known_to_fit(c, index_tag, shape, rest, attempt_id, lease_id, op_id, values, at)
  if not change then return decide_first(c, id, plan_at(c, shape, values, at), row, rest, values, at) end
  local op, kept, result = values[at + @own.op], change.keeps_lease and lease_id or '', c.args[values[at + @own.result_argument]]
  ff.repeat_change(c, index_tag, id, change, attempt_id, lease_id, kept, op ~= '' and op or op_id, result)
  return change.answer
end

ff.register('apply', function(_, args)
  local c = ff.open(args)
  local values, claim, answers = c.request[@applying.plans], c.request[@applying.claim], {}
  c.fence, c.claims = {}, claim and #claim[@claim.ids] / 2
  for at = 0, #values - 1, STRIDE do
    local ok, answer = pcall(apply, c, values, at)
    answers[#answers + 1] = ok and answer or ff.bug(answer)
    if ff.is_long(c, CPU_LIMITS.items, #answers) then break end
  end
  local claimed = false
  if claim then
    ff.open_claims(c, { claim })
    claimed = ff.claim(c, claim)
  end
  return ff.close(c, { answers, claimed })
end)
