-- ff1_slots: slots last as long as leases do and are given back.
-- request: {@act, ...}
-- answers: {'held', whether a slot is held now}; {'freed', admissible, true, 0}; or {'unreadable', what, id}.
--   `admissible` is {execution, grant, ...}.

local acts = {}

-- An unknown quota, or one without a cap, has no slots.
-- mirrors core.limits.gates.extend
function acts.extend(state, item)
  local name, execution = item[@extend.gate], item[@extend.execution_id]
  local gate, fault = ff.gate(state, name)
  if fault then return fault end
  if not gate then
    if not ff.is_key_gate(name) then return { 'held', false } end
    gate = ff.fresh_gate(name)
  end
  if gate.quota and gate.quota[@q.max_concurrent] == 0 then return { 'held', false } end
  local ends_at = state.now + item[@extend.hold_ms]
  if not ff.gate_row(state, gate, 's', execution) then gate.slots = gate.slots + 1 end
  ff.put_gate_rows(state, gate, execution, item[@extend.holder], ends_at)
  ff.keep_gate(state, gate, ends_at)
  return { 'held', true }
end

function acts.vacate(state, item)
  local name, execution, holder = item[@vacate.gate], item[@vacate.execution_id], item[@vacate.holder]
  local gate, fault = ff.gate(state, name)
  if fault then return fault end
  if not gate then return { 'freed', {}, true, 0 } end
  -- An execution that leaves does not wait any more: it must not be chosen instead of another.
  ff.unlist_waiter(state.tag, name, execution)
  local slots = item[@vacate.slot] and ff.drop_gate_row(state, gate, 's', execution, holder) or 0
  local entries = item[@vacate.entry] and ff.drop_gate_row(state, gate, 'e', execution, holder) or 0
  gate.slots, gate.entries = gate.slots - slots, gate.entries - entries
  if slots + entries == 0 and not gate.relieved then return { 'freed', {}, true, 0 } end
  -- Slots that ended by themselves make room, too, and nothing else notices that.
  gate.relieved = false
  return { 'freed', ff.admissible_at_gate(state, gate), true, 0 }
end

ff.register('slots', function(_, args)
  return ff.run_acts(args, acts, ff.open_gates, ff.gate, ff.write_gates)
end)
