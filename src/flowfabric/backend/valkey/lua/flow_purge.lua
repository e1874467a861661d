-- What a purge asks and tells of flows.

-- Whether a member's result may still be somebody's input.
function ff.is_needed(c, tag, r)
  return false
end

function ff.member_purged(c, tag, r)
end
