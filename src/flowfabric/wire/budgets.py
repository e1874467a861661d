"""Budgets and quotas."""

from typing import Literal

from flowfabric.wire.scalars import Answer, Body, ExecutionId, Tagged, Uuid
from flowfabric.wire.workers import Breach


class CreateBudget(Body, frozen=True, kw_only=True):
    """The three lists go together; a limit of 0 is no limit, an interval of 0 never resets."""

    scope_type: str
    scope_id: str
    enforcement_mode: str
    on_hard_limit: str
    on_soft_limit: str
    reset_interval_ms: int
    dimensions: list[str]
    hard_limits: list[int]
    soft_limits: list[int]
    budget_id: Uuid | None = None
    parent_id: Uuid | None = None


class BudgetId(Answer, frozen=True, kw_only=True):
    budget_id: str


class CreateBudgetAnswer(Tagged, frozen=True, kw_only=True):
    created: BudgetId | None = None
    already_satisfied: BudgetId | None = None


class BudgetStatus(Answer, frozen=True, kw_only=True):
    """Instants are texts here, and null until they are set."""

    budget_id: str
    parent_id: str | None
    scope_type: str
    scope_id: str
    enforcement_mode: str
    usage: dict[str, int]
    reserved: dict[str, int]
    hard_limits: dict[str, int]
    soft_limits: dict[str, int]
    breach_count: int
    soft_breach_count: int
    reset_count: int
    last_breach_at: str | None
    last_breach_dim: str | None
    next_reset_at: str | None
    created_at: str | None


class BudgetUsage(Body, frozen=True, kw_only=True):
    dimensions: dict[str, int]
    dedup_key: str = ""
    budget_id: str | None = None


class ReserveBudget(Body, frozen=True, kw_only=True):
    reservation_id: str
    dimensions: dict[str, int]
    ttl_ms: int
    execution_id: ExecutionId | None = None
    budget_id: str | None = None


ReserveAnswer = Breach | Literal["Reserved", "AlreadyApplied"]


class CommitReservation(Body, frozen=True, kw_only=True):
    """What was really spent."""

    dimensions: dict[str, int]
    budget_id: str | None = None
    reservation_id: str | None = None


class Reset(Answer, frozen=True, kw_only=True):
    """0 when no further reset is due by itself."""

    next_reset_at: int


class ResetAnswer(Tagged, frozen=True, kw_only=True):
    reset: Reset


class CreateQuota(Body, frozen=True, kw_only=True):
    """A limit of 0 is no limit."""

    window_seconds: int
    max_requests_per_window: int
    max_concurrent: int
    jitter_ms: int = 0
    quota_policy_id: Uuid | None = None


class QuotaId(Answer, frozen=True, kw_only=True):
    quota_policy_id: str


class CreateQuotaAnswer(Tagged, frozen=True, kw_only=True):
    created: QuotaId | None = None
    already_satisfied: QuotaId | None = None
