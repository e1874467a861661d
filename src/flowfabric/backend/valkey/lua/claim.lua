-- ff1_claim: the best waiting records of some lanes, leased or reserved in the same step.
-- request: {@claim, ...}; an @claim_order is packed in an argument of its own
-- answers: {offers, more, whether too many queues of others were passed over}; an offer is {disposition, row, static, input, deferred, journal length,
--   suspension id, suspension, upstreams}, where row, static, input and suspension are numbers of
--   raw elements, 0 when there is none. A lease with nothing else to answer is the number of its row, the static
--   text and the input being the next two elements; of a record without input the negative number.
--
-- ff1_lease: named records.
-- request: {@named_claim, ...}
-- answers: an offer, or {'refused', row, static}

local function order_before(rank, id, other_rank, other_id)
  if rank ~= other_rank then return rank < other_rank end
  return id < other_id
end

-- The best record left in a queue. A page holds about as much as all claims of the call may take of it.
local function head(c, queue)
  while not queue.id do
    local member = queue.page[queue.at]
    if member then
      queue.id, queue.best = member, tonumber(queue.page[queue.at + 1])
      queue.at = queue.at + 2
    elseif queue.is_done then
      return nil
    else
      local size = math.ceil(c.wanted / c.opened)
      if size > $lease.QUEUE_PAGE then size = $lease.QUEUE_PAGE end
      ff.write_views(c)
      -- One that was damaged has nothing, and keeps nobody from the others.
      local ok, page = pcall(call, 'ZRANGE', queue.key, queue.kept, queue.kept + size, 'WITHSCORES')
      queue.page, queue.at, queue.is_unsure = ok and page or {}, 1, not ok
      queue.is_done = #queue.page < 2 * (size + 1)
    end
  end
  return queue.id
end

-- The rank of the first record that claims have left in a queue, nil when there is none. Those that were
-- passed over stand before all others, and something may have come since the queue was read.
function ff.rank_left(queue)
  if queue.kept > 0 or queue.is_unsure or not (queue.id or queue.page[queue.at] or queue.is_done) then
    return call('ZRANGE', queue.key, 0, 0, 'WITHSCORES')[2]
  end
  return queue.id and queue.best or queue.page[queue.at + 1]
end

-- Queues of a lane whose best records are known stand in their order, the best last.
local function stand(c, open, queue)
  if not head(c, queue) then return end
  local queues, rank, id = open.queues, queue.best, queue.id
  local at = #queues
  while at > 0 and order_before(queues[at].best, queues[at].id, rank, id) do
    queues[at + 1] = queues[at]
    at = at - 1
  end
  queues[at + 1] = queue
end

-- Read a queue in its order: what was found once in a call is not found again.
local function open_queue(c, open, queue)
  if open.opened[queue] then return end
  open.opened[queue] = true
  if not queue.is_read then
    queue.is_read, queue.page, queue.at, queue.kept, c.opened = true, {}, 1, 0, c.opened + 1
  end
  stand(c, open, queue)
end

local function is_of(r, open)
  return r[@lane] == open.lane and r[@namespace] == open.namespace and ff.takes(open.taken, r[@req_set])
end

local function is_before(one, other)
  return order_before(one[2], one[1], other[2], other[1])
end

-- What is held back for this claim stands in a queue of its own.
local function open_held(c, open)
  local found, page = {}, {}
  for id, held in pairs(ff.held) do
    local r = held.after
    if is_of(r, open) then found[#found + 1] = { id, r[@rank] } end
  end
  if not found[1] then return end
  sort(found, is_before)
  for i = 1, #found do page[2 * i - 1], page[2 * i] = found[i][1], found[i][2] end
  stand(c, open, { tag = open.tag, page = page, at = 1, kept = 0, is_done = true })
end

-- What claims that take the same queues see of a lane: the queues that the call itself has put something into,
-- and those that are listed, the best first.
local function open_lane(c, order, at)
  local namespace, lane, taken = order[@claim_order.namespace], order[@claim_order.lanes][at], order[@claim_order.queues]
  local tag = c.index_tag or c.cluster
  local listed = ff.lane_queues(tag, namespace, lane)
  for i = 1, #c.lanes do
    local open, own = c.lanes[i], c.lanes[i].taken
    if open.listed == listed and own[@queues.sets] == taken[@queues.sets] and own[@queues.kinds] == taken[@queues.kinds]
      and not own[@queues.names] == not taken[@queues.names] then
      return open
    end
  end
  local open = { listed = listed, tag = tag, namespace = namespace, lane = lane, taken = taken, queues = {}, opened = {} }
  c.lanes[#c.lanes + 1] = open
  open_held(c, open)
  for _, queue in pairs(c.queues) do
    if queue.lane == lane and queue.namespace == namespace and ff.takes(taken, queue.req_set) then open_queue(c, open, queue) end
  end
  open.walk = ff.walk_queues(listed, taken)
  return open
end

-- Of a lane that claims of other workers have taken from since, the queues are put in their order anew.
local function stand_again(c, open)
  local queues = open.queues
  open.queues = {}
  for i = 1, #queues do stand(c, open, queues[i]) end
end

-- The best queue of those a lane's claims take, and a rank that nothing else is below. Only the last one may have
-- got another best record since it was put in its place.
local function best_queue(c, order, at)
  local open = open_lane(c, order, at)
  if c.lane ~= open then stand_again(c, open) end
  c.lane = open
  local queues, walk = open.queues, open.walk
  local last = queues[#queues]
  if last then
    queues[#queues] = nil
    stand(c, open, last)
  end
  while walk.name and (not queues[1] or walk.rank <= queues[#queues].best) do
    open_queue(c, open, ff.queue_of(c, open.tag, open.namespace, open.lane, walk.name))
    ff.next_queue(walk)
  end
  local second, rival = queues[#queues - 1], walk.rank or 1e300
  return queues[#queues], second and second.best < rival and second.best or rival
end

-- mirrors core.lease.is_exhausted
local function is_exhausted(r)
  return r[@state] == $state.lost and r[@reclaim_count] >= r[@max_reclaim_count]
end

-- The suspension a claim of this record resumes from, '' when something else paused it.
-- mirrors core.lease.paused_by_suspension
local function paused_by(r)
  local attempt = r[@next] == $next.resume and ff.attempt_of(r)
  if not attempt or OWN_PAUSES[attempt[@a.suspension_id]] then return '' end
  return attempt[@a.suspension_id]
end

-- What a lease holder is given beside the record. `found` is as it was stored.
local function leased(c, id, before, terms, found, deferred, upstreams)
  local after, row = ff.lease(c, id, before, terms)
  local number, static, input = ff.attach(c, row), ff.attach(c, found[2]), 0
  if found[3] and not deferred then input = ff.attach(c, found[3]) end
  local is_joined = upstreams and before[@flow_id] ~= ''
  if after[@lease_epoch] == 1 and not deferred and not is_joined then
    return input ~= 0 and number or -number
  end
  local offer = { $disposition.leased, number, static, input, deferred, 0, '', 0, false }
  if after[@lease_epoch] > 1 then offer[6] = ff.journal_length(id) end
  local suspension = paused_by(before)
  if suspension ~= '' then
    offer[7] = suspension
    local document = call('HGET', ff.documents(id), $documents.SUSPENSION)
    if document then offer[8] = ff.attach(c, document) end
  end
  if is_joined then offer[9] = ff.upstreams(c, id, true) end
  return offer
end

local function seen(c, disposition, row, static)
  return { disposition, ff.attach(c, row), ff.attach(c, static), 0, false, 0, '', 0, false }
end

-- The packed record, its static text, and its input if that is wanted.
local function stored(id, with_input)
  if with_input then return call('HMGET', $key.execution .. id, $field.record, $field.static, $field.input) end
  return call('HMGET', $key.execution .. id, $field.record, $field.static)
end

-- What is stored of a record, what its row is behind its ids, and the change that a record like it went through
-- in this call, or the record itself.
local function read(order, index_tag, id)
  local found, held = stored(id, order[@claim_order.payload]), ff.held[id]
  if not found[2] then return nil end
  if held then return found, nil, nil, nil, held.after end
  if not order.is_of_many then return found, nil, nil, nil, ff.decode(found[1]) end
  local rest, _, _, op_id = ff.divided(found[1])
  local change = ff.known_change(order.changes, index_tag, rest)
  return found, rest, op_id, change, not change and ff.decode(found[1])
end

-- The disposition of a record that is not to be leased; nil for all others.
local function kept_by(c, id, r)
  if r[@flow_id] ~= '' and ff.is_cancelled_by_flow(c, ff.tag_of(id), r) then return $disposition.cancelled_by_flow end
  return is_exhausted(r) and $disposition.exhausted or nil
end

-- Lease a record and trace it for those of the same shape.
local function lease_first(c, order, id, r, rest, found, deferred)
  if not rest then return leased(c, id, r, order.terms, found, deferred, order[@claim_order.upstreams]) end
  ff.begin_trace(c)
  local offer = leased(c, id, r, order.terms, found, deferred, order[@claim_order.upstreams])
  if type(offer) ~= 'number' or r[@flow_id] ~= '' or c.trace.ended then
    c.trace = nil
  else
    ff.keep_trace(c, order.changes, ff.index_tag_of(c, id), rest)
  end
  return offer
end

-- Lease a record like one that was leased before; as an offer.
local function lease_same_shape(c, order, queue, id, change, op_id, found)
  local terms = order.terms
  local row = ff.repeat_change(c, queue.tag, id, change, terms[4], terms[3], terms[3], op_id)
  local number = ff.attach(c, row)
  ff.attach(c, found[2])
  if not found[3] then return -number end
  ff.attach(c, found[3])
  return number
end

-- One that cannot be read is passed over: it must not keep the others from being claimed.
local function take(c, order, ids, reply, queue, id)
  local ok, found, rest, op_id, change, r = pcall(read, order, queue.tag, id)
  if not (ok and found) then
    queue.kept, c.wanted = queue.kept + 1, c.wanted + 1
    return nil
  end
  local at, terms = 2 * #reply.offers, order.terms
  local input, deferred = found[3], false
  if input then deferred = #input > reply.room end
  terms[3], terms[4] = ids[at + 1], ids[at + 2]
  if change and not deferred and ff.may_emit_again(c, queue.tag, change) then
    if input then reply.room = reply.room - #input end
    return lease_same_shape(c, order, queue, id, change, op_id, found)
  end
  r = r or ff.decode(found[1])
  local disposition = kept_by(c, id, r)
  if disposition then
    queue.kept = queue.kept + 1
    if ff.held[id] then found[1] = pack(r) end
    return seen(c, disposition, found[1], found[2])
  end
  if order.is_reserve or r[@gated] then
    local length = order.is_reserve and order[@claim_order.lease_for] or $lease.RESERVATION_MS
    local row = ff.reserve(c, id, r, order[@claim_order.worker_id], order[@claim_order.worker_instance_id], ids[at + 1], length)
    return seen(c, $disposition.reserved, row, found[2])
  end
  if input and not deferred then reply.room = reply.room - #input end
  return lease_first(c, order, id, r, rest, found, deferred)
end

-- The best queue of an order's lane. It stays the best for all claims of a call by that order while
-- nothing else can be before its head.
local function next_queue(c, order, at)
  local queue = order.queues[at]
  if not (queue and head(c, queue) and queue.best < order.rivals[at]) then
    queue, order.rivals[at] = best_queue(c, order, at)
    order.queues[at] = queue
  end
  return queue
end

local function has_more(c, order)
  for at = 1, #order[@claim_order.lanes] do
    if next_queue(c, order, at) then return true end
  end
  return false
end

local function is_flooded(c, order)
  for at = 1, #order[@claim_order.lanes] do
    if open_lane(c, order, at).walk.is_flooded then return true end
  end
end

local function order_of(c, number)
  local order = c.orders[number]
  if not order then
    order = unpack_message(c.args[number])
    order.queues, order.rivals, order.changes, order.is_of_many = {}, {}, {}, c.wanted > 1
    order.is_reserve = order[@claim_order.mode] == 'reserve'
    order.terms = { order[@claim_order.worker_id], order[@claim_order.worker_instance_id], '', '', order[@claim_order.lease_for], '' }
    c.orders[number] = order
  end
  return order
end

function ff.claim(c, request)
  local order, ids = order_of(c, request[@claim.order_argument]), request[@claim.ids]
  local asked = #ids / 2
  local reply = { offers = {}, room = order[@claim_order.room] }
  local offers, looks, bound = reply.offers, asked + $lease.SPARE_LOOKS, order[@claim_order.bound]
  for at = 1, #order[@claim_order.lanes] do
    while #offers < asked and looks > 0 do
      looks = looks - 1
      -- In a cluster a claim has divided what it wants among partitions, by rank.
      if not c.cluster and ff.is_long(c, CPU_LIMITS.claim, #offers) then break end
      local queue = next_queue(c, order, at)
      if not queue or bound and queue.best > bound then break end
      local id = queue.id
      queue.id = nil
      c.wanted = c.wanted - 1
      offers[#offers + 1] = take(c, order, ids, reply, queue, id)
    end
  end
  return { offers, has_more(c, order), is_flooded(c, order) }
end

-- Begin the claims of a call.
function ff.open_claims(c, requests)
  c.lanes, c.orders, c.wanted, c.opened = {}, {}, 0, 0
  for i = 1, #requests do c.wanted = c.wanted + #requests[i][@claim.ids] / 2 end
end

ff.register('claim', function(_, args)
  local c = ff.open(args)
  ff.open_claims(c, c.request)
  return ff.close(c, ff.each(c, c.request, ff.claim, CPU_LIMITS.items))
end)

-- mirrors core.lease.may_lease, core.lease.has_live_grant
local function may_lease(r, now, named)
  if not CLAIMABLE[r[@state]] then return false end
  if named[@named_claim.grant_id] == '' then return r[@grant_until] <= now end
  return r[@grant_id] == named[@named_claim.grant_id] and r[@grant_worker] == named[@named_claim.worker_id]
    and r[@grant_instance] == named[@named_claim.worker_instance_id] and r[@grant_until] > now
end

local function lease_named(c, named)
  local id = named[@named_claim.execution_id]
  local found = stored(id, named[@named_claim.payload])
  if not found[1] then return { 'refused', 0, 0 } end
  local r = ff.decode(found[1])
  if not may_lease(r, c.now, named) then
    return { 'refused', ff.attach(c, found[1]), ff.attach(c, found[2]) }
  end
  local disposition = kept_by(c, id, r)
  if disposition then return seen(c, disposition, found[1], found[2]) end
  local terms = { named[@named_claim.worker_id], named[@named_claim.worker_instance_id], named[@named_claim.lease_id], named[@named_claim.attempt_id], named[@named_claim.lease_for], named[@named_claim.reason] }
  return leased(c, id, r, terms, found, false, named[@named_claim.upstreams])
end

ff.register('lease', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, lease_named))
end)
