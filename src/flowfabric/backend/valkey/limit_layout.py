"""The order of packed budgets and quotas, and how they are read back."""

from typing import Any, Final

import msgspec

from flowfabric.core.limits.asks import Reservation
from flowfabric.core.limits.budgets import Budget
from flowfabric.core.limits.gates import Quota, Waiter

BUDGET: Final = (
    "namespace",
    "scope_type",
    "scope_id",
    "enforcement_mode",
    "on_hard_limit",
    "on_soft_limit",
    "reset_interval_ms",
    "ancestors",
    # Dimensions in byte order: the functions do not sort.
    "names",
    "hard_limits",
    "soft_limits",
    "used",
    "reserved",
    "breach_count",
    "soft_breach_count",
    "reset_count",
    "created_at",
    "last_updated_at",
    "last_reset_at",
    "last_breach_at",
    "last_breach_dim",
    "next_reset_at",
    "holds_end_at",
)
QUOTA: Final = (
    "namespace",
    "window_seconds",
    "max_requests_per_window",
    "max_concurrent",
    "jitter_ms",
    "created_at",
)

_COUNTS: Final = ("hard_limits", "soft_limits", "used", "reserved")


def budget_row(budget: Budget) -> list[Any]:
    named = {**msgspec.structs.asdict(budget), "names": sorted(budget.hard_limits)}
    return [named[name] for name in BUDGET]


def budget_of(budget_id: str, row: list[Any]) -> Budget:
    fields = dict(zip(BUDGET, row, strict=True))
    del fields["names"]
    for name in _COUNTS:
        # The functions' packer cannot tell an empty map from an empty list.
        fields[name] = fields[name] or {}
    fields["ancestors"] = tuple(fields["ancestors"])
    return Budget(budget_id=budget_id, **fields)


def quota_row(quota: Quota) -> list[Any]:
    return [getattr(quota, name) for name in QUOTA]


def quota_of(quota_policy_id: str, row: list[Any]) -> Quota:
    return Quota(quota_policy_id=quota_policy_id, **dict(zip(QUOTA, row, strict=True)))


def hold_of(row: list[Any]) -> Reservation:
    root_id, amounts, until, execution_id, state = row
    return Reservation(
        root_id=root_id,
        # The functions' packer cannot tell an empty map from an empty list.
        amounts=amounts or {},
        until=until,
        execution_id=execution_id,
        state=state,
    )


def waiter_of(row: list[Any]) -> Waiter:
    rank, until, needs_entry, cap, grant_id = row
    return Waiter(rank=rank, until=until, needs_entry=bool(needs_entry), cap=cap, grant_id=grant_id)
