-- Reads need no function of their own: the client names commands. Nor do rare mechanisms: the client reads
-- rows, runs the reference over them, and commits what it wrote, if the rows are still what it read.
--
-- ff1_fetch: request {read, ...}, of any slots of one node; the replies are raw elements in the same order. Answers
--   {number of the read, error}, ... of those that cannot be read, whose replies are nil.
-- ff1_snapshot: request {read, ...}; a read is a command and its words, or one of `READS`. Answers the digest of each reply; the
--   replies are raw elements in the same order. A reply that is an error has the digest '!' and its text.
-- ff1_commit: request @committing. A put is {kind, ...} as `WRITERS`
--   reads it; the log is groups as ff1_log answers them.
-- ff1_commit_freeing: the same for what makes room, which a server without memory to spare lets pass.
-- answers: {true}, or {false, digests} when something that was read has changed meanwhile, or the decision
--   is too old: nothing was written, and the replies are read again for the next decision.
--
-- A repeat of a commit whose answer was lost finds its own change and answers that something has changed:
-- the client decides again by what is there.

local function in_turn(ids, rows)
  local flat = {}
  for i = 1, #ids do flat[2 * i - 1], flat[2 * i] = ids[i], rows[i] end
  return flat
end

-- Reads that are no commands. Edges are answered as edge id and packed edge in turn.
local READS = {}

-- {tag, flow id, name of the list, after, limit}
function READS.edges(tag, flow_id, list, after, limit)
  return in_turn(ff.edge_rows(tag, flow_id, list, after, tonumber(limit)))
end

-- {execution}: all that lead to it.
function READS.incoming(id)
  local r = ff.load(id)
  return r and r[@flow_id] ~= '' and in_turn(ff.incoming_rows(r[@flow_id], id)) or {}
end

local function reply_to(read)
  local own = READS[read[1]]
  if own then return own(unpack(read, 2)) end
  return server.pcall(unpack(read))
end

-- '' when there is nothing.
local function digest_of(reply)
  if not reply then return '' end
  if type(reply) == 'table' and reply.err then return '!' .. reply.err end
  return server.sha1hex(pack(reply))
end

local function read_all(c, reads)
  local digests = {}
  for i = 1, #reads do
    local reply = reply_to(reads[i])
    digests[i] = digest_of(reply)
    ff.attach(c, sub(digests[i], 1, 1) ~= '!' and reply)
  end
  return digests
end

local function is_unchanged(reads, digests)
  for i = 1, #reads do
    if digest_of(reply_to(reads[i])) ~= digests[i] then return false end
  end
  return true
end

-- What is written of each kind, with all that follows from it. A row is the number of its argument, 0 for none.
local WRITERS = {}

-- {budget id, row}
function WRITERS.budget(c, tag, put)
  c.budgets = c.budgets or ff.open_budgets(c, tag)
  ff.put_budget(c.budgets, put[2], unpack_message(c.args[put[3]]))
end

-- {root, budget id, reservation}: an ended one goes.
function WRITERS.reservation(_, tag, put)
  ff.drop_reservation(tag, put[2], put[3], put[4])
end

-- {gate, row of the quota or 0, the instant its last slot or entry ends or 0}
function WRITERS.gate(c, tag, put)
  if put[3] > 0 then call('SET', $key.quota .. tag .. ':' .. put[2], c.args[put[3]]) end
  if put[4] > 0 then call('ZADD', $key.gate_ends .. tag, put[4], put[2]) end
end

-- {gate, 's' for a slot or 'e' for an entry, execution}: an ended one goes.
function WRITERS.gate_row(_, tag, put)
  ff.delete_gate_row(tag, put[2], put[3], put[4])
end

-- {limit, execution}: it no longer waits.
function WRITERS.waiter(_, tag, put)
  ff.unlist_waiter(tag, put[2], put[3])
end

-- {name, version, due_at, body}
function WRITERS.document(c, _, put)
  ff.put_document(put[2], put[3], put[4], c.args[put[5]])
end

-- {namespace, instance, row}
function WRITERS.worker(c, _, put)
  ff.put_worker(put[2], put[3], c.args[put[4]])
end

-- {flow id, row}: one without a row goes, and its edges with it.
function WRITERS.flow(c, tag, put)
  if put[3] > 0 then return ff.put_flow(c, tag, put[2], ff.array(c.args[put[3]])) end
  ff.drop_edges(tag, put[2])
  ff.drop_flow(c, tag, put[2])
end

-- {id, row, static text of a new one or 0}
function WRITERS.record(c, _, put)
  local id, fields = put[2], put[4] > 0 and { $field.static, c.args[put[4]] } or nil
  ff.write(c, id, ff.load(id), ff.decode(c.args[put[3]]), nil, fields)
end

-- {id of its target, row}
function WRITERS.group(c, _, put)
  ff.put_group(c, put[2], ff.array(c.args[put[3]]))
end

-- {flow id, edge id, row}
function WRITERS.edge(c, tag, put)
  ff.put_edge(c, tag, put[2], put[3], ff.array(c.args[put[4]]))
end

-- {id, name of the field, body}
function WRITERS.field(c, _, put)
  call('HSET', ff.execution(put[2]), put[3], c.args[put[4]])
end

-- {id, entry}: kept beside its record.
function WRITERS.history(c, _, put)
  call('RPUSH', ff.history(put[2]), c.args[put[3]])
end

-- {namespace, lane and key, the rank time last given out}
function WRITERS.fairness(_, tag, put)
  call('HSET', ff.fairness(tag, put[2]), put[3], put[4])
end

local function write_all(c, tag, request)
  local puts, log, topics = request[@committing.puts], request[@committing.log], request[@committing.topics]
  for i = 1, #puts do WRITERS[puts[i][1]](c, tag, puts[i]) end
  if c.budgets then ff.write_budgets(c.budgets) end
  for i = 1, #log do ff.log(c, c.index_tag or tag, log[i]) end
  for i = 1, #topics do ff.notify(c, topics[i]) end
end

local function commit(_, args)
  local c = ff.open(args)
  local request = c.request
  local decided_at, reads = request[@committing.decided_at], request[@committing.reads]
  if c.now - decided_at > DECISION_MS or not is_unchanged(reads, request[@committing.digests]) then
    return ff.answer(c, { false, read_all(c, reads) })
  end
  -- What was decided for an instant happens at that instant.
  c.now = decided_at
  write_all(c, request[@committing.tag], request)
  return ff.close(c, { true })
end

ff.register('fetch', function(_, args)
  local c, faults = ff.open(args), {}
  for i = 1, #c.request do
    local reply = reply_to(c.request[i])
    local fault = type(reply) == 'table' and reply.err
    if fault then faults[#faults + 1] = { i, fault } end
    ff.attach(c, not fault and reply)
  end
  return ff.answer(c, faults)
end, { 'no-writes', 'allow-cross-slot-keys' })

ff.register('snapshot', function(_, args)
  local c = ff.open(args)
  return ff.answer(c, read_all(c, c.request))
end, { 'no-writes' })

ff.register('commit', commit)
ff.register('commit_freeing', commit, { 'allow-oom' })
