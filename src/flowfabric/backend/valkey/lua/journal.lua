-- ff1_journal: named steps of an execution, each written once, under the lease's fence.
-- request: {@append_steps, ...}
-- answers: {'journaled', found}: per entry 0 when it was stored now, else the number of the raw
--   element that was there, or below 0 the place of the same step in this very item;
--   {'refused', row, static}, {'differs', place, recorded digest}, {'too large', place},
--   {'full', length}, {'no mail', place in what is to be taken}
--
-- ff1_journal_read: request @read_steps; answers whether more entries follow, then numbers of
--   raw entries, in order; the first is answered whatever its size
--
-- ff:j:<id> maps an address (`a<seq>:<name>`) to "<number> <digest>" and a number to its entry: two
-- fields for each entry, numbered from 1 in the order of arrival.

-- The number of the last entry.
function ff.journal_length(id)
  return call('HLEN', ff.journal(id)) / 2
end

-- Drop the entries from this number on; none if it is false or 0.
function ff.drop_journal(id, first)
  if not first or first == 0 then return end
  local key = ff.journal(id)
  if first == 1 then return call('DEL', key) end
  local fields = call('HKEYS', key)
  for i = 1, #fields do
    local field = fields[i]
    local number = tonumber(field)
    if not number then
      local known = call('HGET', key, field)
      number = tonumber(sub(known, 1, find(known, ' ', 1, true) - 1))
    end
    if number >= first then call('HDEL', key, field) end
  end
end

-- The number and the digest of the entry at an address.
local function stored(key, address)
  local known = call('HGET', key, address)
  if not known then return nil end
  local blank = find(known, ' ', 1, true)
  return sub(known, 1, blank - 1), sub(known, blank + 1)
end

-- Look every entry up before the first is written: what was found, and the places of the new ones;
-- or why none of them is.
local function look_up(c, key, entries)
  local found, new, places = {}, {}, {}
  for place = 1, #entries / 3 do
    local address, digest = entries[3 * place - 2], entries[3 * place - 1]
    local first = places[address]
    local number, recorded
    if first then recorded = entries[3 * first - 1] else number, recorded = stored(key, address) end
    if recorded and recorded ~= digest then return nil, { 'differs', place, recorded } end
    if first then
      found[place] = -first
    elseif number then
      found[place] = ff.attach(c, call('HGET', key, number))
    elseif entries[3 * place] > $journal.MAX_ENTRY_BYTES then
      return nil, { 'too large', place }
    else
      found[place], places[address] = 0, place
      new[#new + 1] = place
    end
  end
  return found, new
end

-- How large the documents are that are to be taken; or which of them is not there.
local function size_of(id, take)
  local size, name = 0, ff.documents(id)
  for place = 1, #take do
    local stored = call('HGET', name, take[place])
    if not stored then return nil, place end
    local _, first_at = find(stored, ' ', 1, true)
    local _, last_at = find(stored, ' ', first_at + 1, true)
    size = size + #stored - last_at
  end
  return size
end

-- Signals leave the mailbox together with what was made of them.
local function take_mail(c, id, before, take, size)
  local after = ff.copy(before)
  ff.put(after, @mail_count, before[@mail_count] - #take)
  ff.put(after, @mail_bytes, before[@mail_bytes] - size)
  ff.derive(before, after, c.now)
  ff.write(c, id, before, after)
  call('HDEL', ff.documents(id), unpack(take))
end

-- Write a step that is not there yet.
local function write_step(key, number, address, digest, entry)
  call('HSET', key, address, number .. ' ' .. digest, number, entry)
end

-- Journal those steps of a plan that are not journaled yet: address, digest and argument number in turn.
function ff.add_steps(c, id, steps)
  local key = ff.journal(id)
  for i = 1, #steps, 3 do
    local address = steps[i]
    if not call('HGET', key, address) then
      write_step(key, ff.journal_length(id) + 1, address, steps[i + 1], c.args[steps[i + 2]])
    end
  end
end

local function append(c, item)
  local id, entries, take = item[@append_steps.id], item[@append_steps.entries], item[@append_steps.take]
  local r, row = ff.load(id)
  if not r or not ff.holds(r, item[@append_steps.lease_id], item[@append_steps.lease_epoch], item[@append_steps.attempt_id], c.now) then
    return ff.refused(c, id, row)
  end
  local key = ff.journal(id)
  local found, new = look_up(c, key, entries)
  if not found then return new end
  local length = ff.journal_length(id)
  if #new > 0 and length + #new > $journal.MAX_ENTRIES then return { 'full', length } end
  if #new > 0 and #take > 0 then
    local size, gone = size_of(id, take)
    if not size then return { 'no mail', gone } end
    take_mail(c, id, r, take, size)
  end
  for i = 1, #new do
    local place, number = new[i], length + i
    write_step(key, number, entries[3 * place - 2], entries[3 * place - 1], c.args[item[@append_steps.first_argument] + place - 1])
  end
  return { 'journaled', found }
end

ff.register('journal', function(_, args)
  local c = ff.open(args)
  return ff.close(c, ff.each(c, c.request, append))
end)

ff.register('journal_read', function(_, args)
  local c = ff.open(args)
  local key, after, limit, room = ff.journal(c.request[@read_steps.id]), c.request[@read_steps.after], c.request[@read_steps.limit], c.request[@read_steps.bytes]
  local found, number = { false }, after + 1
  local entry = call('HGET', key, number)
  while entry do
    room = room - #entry
    if number > after + limit or (room < 0 and number > after + 1) then
      found[1] = true
      break
    end
    found[#found + 1] = ff.attach(c, entry)
    number = number + 1
    entry = call('HGET', key, number)
  end
  return ff.answer(c, found)
end, { 'no-writes' })
