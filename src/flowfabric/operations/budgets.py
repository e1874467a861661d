"""Budgets and quotas. A breach is an outcome, never an error."""

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from flowfabric.errors import BudgetNotFound, InvalidQuotaSpec, PartitionMismatch, QuotaNotFound
from flowfabric.operations.declaration import ADMIN, READ, WORKER, operation
from flowfabric.operations.types import (
    Answer,
    BudgetId,
    ExecutionId,
    Free,
    Limit,
    Namespace,
    NewBudgetId,
    NewQuotaId,
    Outcome,
    Page,
    Part,
    QuotaId,
)

Amounts = dict[str, int]
LimitName = Annotated[str, Free("a name within its namespace, which is authorized")]
ReservationId = Annotated[str, Free("a name within its budget")]


class NewBudget(Part, frozen=True, kw_only=True):
    """The three lists have the same length. A limit of 0 is no limit; an interval of 0 never
    resets."""

    namespace: Namespace = "default"
    scope_type: str = "global"
    scope_id: Annotated[str, Free("a label; nothing is looked up by it")] = ""
    enforcement_mode: str = "strict"
    on_hard_limit: str = "reject"
    on_soft_limit: str = "warn"
    reset_interval_ms: int = 0
    dimensions: Sequence[str]
    hard_limits: Sequence[int]
    soft_limits: Sequence[int]
    budget_id: NewBudgetId = ""
    parent_id: BudgetId = ""
    # Its name within the namespace, instead of an id: submits and lists go by it.
    name: LimitName = ""


class BudgetCreated(Outcome, frozen=True, kw_only=True, tag="created"):
    status: ClassVar[int] = 201

    budget_id: str


class BudgetExists(Outcome, frozen=True, kw_only=True, tag="already_satisfied"):
    """The existing budget is left as it is."""

    budget_id: str


class BudgetStatus(Answer, frozen=True, kw_only=True):
    """A budget with its usage. An instant of 0 has not come yet."""

    budget_id: str
    namespace: str
    parent_id: str = ""
    scope_type: str
    scope_id: str
    enforcement_mode: str
    on_hard_limit: str
    on_soft_limit: str
    reset_interval_ms: int = 0
    usage: Amounts
    reserved: Amounts
    hard_limits: Amounts
    soft_limits: Amounts
    breach_count: int
    soft_breach_count: int
    reset_count: int
    last_breach_at: int = 0
    last_breach_dim: str = ""
    next_reset_at: int = 0
    created_at: int


class NamedBudget(Answer, frozen=True, kw_only=True):
    """A budget and the name it was created with, or its id if it has none."""

    name: str
    budget: BudgetStatus


class BudgetChange(Part, frozen=True, kw_only=True):
    """What is left out stays as it is, also the limits of dimensions that are not named. A limit
    of 0 is no limit; a dimension that the budget does not have yet is added."""

    hard_limits: Amounts | None = None
    soft_limits: Amounts | None = None
    reset_interval_ms: int | None = None
    enforcement_mode: str | None = None
    on_hard_limit: str | None = None
    on_soft_limit: str | None = None


class LimitsChanged(Outcome, frozen=True, kw_only=True, tag="changed"):
    """What was changed: each field as it was and as it is; nothing if it was so already."""

    before: dict[str, str | int]
    after: dict[str, str | int]


class Ok(Outcome, frozen=True):
    attempt_failed: ClassVar[bool] = False


class AlreadyApplied(Outcome, frozen=True):
    attempt_failed: ClassVar[bool] = False


class SoftBreach(Outcome, frozen=True, kw_only=True):
    """The amounts are counted; a soft limit of the budget `budget_id` is passed."""

    attempt_failed: ClassVar[bool] = False

    dimension: str
    current_usage: int
    soft_limit: int
    budget_id: str = ""


class HardBreach(Outcome, frozen=True, kw_only=True):
    """Nothing was counted."""

    dimension: str
    current_usage: int
    hard_limit: int
    attempt_failed: bool = False
    budget_id: str = ""


Usage = Ok | AlreadyApplied | SoftBreach | HardBreach


class NewReservation(Part, frozen=True, kw_only=True):
    """What to set aside, under a name of the caller's, and for how long."""

    reservation_id: ReservationId
    dimensions: Mapping[str, int]
    ttl_ms: int
    execution_id: ExecutionId = ""


class Reserved(Outcome, frozen=True):
    """Set aside until this instant, unless it is committed or cancelled before."""

    expires_at: int


class Reset(Outcome, frozen=True, kw_only=True):
    """When the next scheduled reset is due; 0 when there is none."""

    next_reset_at: int = 0


class NewQuota(Part, frozen=True, kw_only=True):
    """A limit of 0 is no limit."""

    namespace: Namespace = "default"
    window_seconds: int = 0
    max_requests_per_window: int = 0
    max_concurrent: int = 0
    jitter_ms: int = 0
    quota_policy_id: NewQuotaId = ""
    # Its name within the namespace, instead of an id: submits and lists go by it.
    name: LimitName = ""


class QuotaCreated(Outcome, frozen=True, kw_only=True, tag="created"):
    status: ClassVar[int] = 201

    quota_policy_id: str


class QuotaExists(Outcome, frozen=True, kw_only=True, tag="already_satisfied"):
    """The existing quota policy is left as it is."""

    quota_policy_id: str


class QuotaStatus(Answer, frozen=True, kw_only=True):
    """A quota policy and how many slots and starts count against it. A limit of 0 is no limit."""

    quota_policy_id: str
    namespace: str
    window_seconds: int
    max_requests_per_window: int
    max_concurrent: int
    jitter_ms: int
    running: int
    started_in_window: int
    created_at: int


class NamedQuota(Answer, frozen=True, kw_only=True):
    """A quota policy and the name it was created with, or its id if it has none."""

    name: str
    quota: QuotaStatus


class QuotaChange(Part, frozen=True, kw_only=True):
    """What is left out stays as it is. A limit of 0 is no limit."""

    window_seconds: int | None = None
    max_requests_per_window: int | None = None
    max_concurrent: int | None = None
    jitter_ms: int | None = None


class Budgets:
    @operation(
        "POST /v1/budgets",
        ADMIN,
        BudgetNotFound,
        PartitionMismatch,
        repeat=("budget_id",),
        audit="budget_created",
    )
    async def create_budget(self, new: NewBudget) -> BudgetCreated | BudgetExists:
        """Create a budget; an existing one stays as it is."""

    @operation("GET /v1/budgets/{budget_id}", READ, BudgetNotFound)
    async def describe_budget(self, budget_id: BudgetId) -> BudgetStatus:
        """The limits of a budget and its usage."""

    @operation("GET /v1/budgets", READ)
    async def list_budgets(
        self, namespace: Namespace = "default", cursor: str = "", limit: Limit = 50
    ) -> Page[NamedBudget]:
        """The budgets of a namespace by name, with their usage."""

    @operation("PATCH /v1/budgets/{budget_id}", ADMIN, BudgetNotFound)
    async def change_budget(self, budget_id: BudgetId, change: BudgetChange) -> LimitsChanged:
        """Give a budget other limits; work that waits is let in by a higher one."""

    @operation("POST /v1/budgets/{budget_id}/usage", WORKER, BudgetNotFound, repeat=("dedup_key",))
    async def report_usage(
        self, budget_id: BudgetId, dimensions: Amounts, dedup_key: str = ""
    ) -> Usage:
        """Count what was spent; past a hard limit nothing is counted."""

    @operation("POST /v1/budgets/{budget_id}/reserve", WORKER, BudgetNotFound)
    async def reserve(
        self, budget_id: BudgetId, new: NewReservation
    ) -> Reserved | AlreadyApplied | HardBreach:
        """Set amounts aside before they are spent."""

    @operation(
        "POST /v1/budgets/{budget_id}/reservations/{reservation_id}/commit", WORKER, BudgetNotFound
    )
    async def commit_reservation(
        self, budget_id: BudgetId, reservation_id: ReservationId, dimensions: Amounts
    ) -> Usage:
        """Count what was really spent in place of what was set aside."""

    @operation(
        "POST /v1/budgets/{budget_id}/reservations/{reservation_id}/cancel", WORKER, BudgetNotFound
    )
    async def cancel_reservation(self, budget_id: BudgetId, reservation_id: ReservationId) -> Usage:
        """Drop what was set aside."""

    @operation(
        "POST /v1/budgets/{budget_id}/reset",
        ADMIN,
        BudgetNotFound,
        repeat=False,
        audit="budget_reset",
    )
    async def reset_budget(self, budget_id: BudgetId) -> Reset:
        """Begin a new period now, with nothing used."""

    @operation(
        "POST /v1/quotas",
        ADMIN,
        InvalidQuotaSpec,
        repeat=("quota_policy_id",),
        audit="quota_created",
    )
    async def create_quota(self, new: NewQuota) -> QuotaCreated | QuotaExists:
        """Create a quota policy; an existing one stays as it is."""

    @operation("GET /v1/quotas", READ)
    async def list_quotas(
        self, namespace: Namespace = "default", cursor: str = "", limit: Limit = 50
    ) -> Page[NamedQuota]:
        """The quota policies of a namespace by name."""

    @operation("GET /v1/quotas/{quota_policy_id}", READ, QuotaNotFound)
    async def describe_quota(self, quota_policy_id: QuotaId) -> QuotaStatus:
        """The limits of a quota policy, and what counts against them."""

    @operation("PATCH /v1/quotas/{quota_policy_id}", ADMIN, QuotaNotFound, InvalidQuotaSpec)
    async def change_quota(self, quota_policy_id: QuotaId, change: QuotaChange) -> LimitsChanged:
        """Give a quota policy other limits; work that waits is let in by a higher one."""
