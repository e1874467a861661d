-- Doorbells, once per call: a channel for each on a standalone server, one for each partition in a
-- cluster.

function ff.ring(c, bell)
  c.rings[bell] = true
end

local function is_offered(r)
  return CLAIMABLE[r[@state]] and r[@grant_until] == 0
end

-- Ring for what a step made of a record; `before` is nil for a new one.
function ff.ring_for(c, id, before, after, ended)
  if is_offered(after) and not (before and is_offered(before)) then
    c.rings['lane:' .. after[@namespace] .. ':' .. after[@lane]] = true
  end
  local attempt = ended or ff.attempt_of(after)
  if attempt and attempt[@a.closed_at] == c.now then
    c.rings['stream:' .. id .. ':' .. attempt[@a.index]] = true
  end
end

function ff.ring_all(c)
  if c.cluster then
    local names = {}
    for bell in pairs(c.rings) do names[#names + 1] = bell end
    if #names > 0 then call('SPUBLISH', 'ff:bell:' .. c.cluster, concat(names, '\n')) end
    return
  end
  for bell in pairs(c.rings) do call('PUBLISH', 'ff:bell:' .. bell, '') end
end
