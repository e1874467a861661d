-- Budgets and gates.

-- Budgets whose time has come: {due_at, id}, ..., and where to go on or false.
function ff.due_budgets(c, limit, after_due, after_id)
  return {}, false
end
