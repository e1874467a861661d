-- What a purge asks and tells of flows.
--
-- ff1_purgeable: request @purgeable; answers {purge_at, partition, flow id}, ... of flows that are
--   past their retention and whose members are all gone, the first of each partition

-- Whether a member's result may still be somebody's input.
function ff.is_needed(c, tag, r)
  local flow = r[@flow_id] ~= '' and ff.flow(c, tag, r[@flow_id])
  return flow and flow[@f.finished_at] == 0
end

function ff.member_purged(c, tag, r)
  local flow = r[@flow_id] ~= '' and ff.flow(c, tag, r[@flow_id])
  if not flow then return end
  flow[@f.purged_count] = flow[@f.purged_count] + 1
  flow[@f.version], flow[@f.changed_at] = flow[@f.version] + 1, c.now
  ff.put_flow(c, tag, r[@flow_id], flow)
end

ff.register('purgeable', function(_, args)
  local c = ff.open(args)
  local most, partitions, found = c.request[@purgeable.limit], c.request[@purgeable.partitions], {}
  for i = 1, #partitions do
    local key = ff.view($ids.TAG .. partitions[i] .. '}', $view.flow_purge)
    local flows = call('ZRANGE', key, '-inf', c.now, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
    for j = 1, #flows, 2 do found[#found + 1] = { tonumber(flows[j + 1]), partitions[i], flows[j] } end
  end
  return ff.answer(c, found)
end, { 'no-writes', 'allow-cross-slot-keys' })
