"""Errors about budgets and quotas."""

from flowfabric.errors.base import NotFoundError, StateError, ValidationError


class BudgetExceeded(StateError):
    """A hard limit is spent: stop, and fail with category `budget_exceeded`."""

    code = "budget_exceeded"
    category = "cooperative"
    status = None


class BudgetNotFound(NotFoundError):
    """No budget, or no parent budget, has this id."""

    code = "budget_not_found"


class InvalidQuotaSpec(ValidationError):
    """A quota that limits the rate needs the window it is counted in."""

    code = "invalid_quota_spec"
