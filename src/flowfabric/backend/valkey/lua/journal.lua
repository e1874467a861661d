-- The journal of an execution.

-- The number of the last entry.
function ff.journal_length(id)
  return 0
end
