"""Budgets as callers define and see them."""

from collections.abc import Sequence
from typing import Final, Literal, get_args

import msgspec

from flowfabric.core.ids import check_text
from flowfabric.core.limits.budgets import (
    MAX_AMOUNT,
    Budget,
    EnforcementMode,
    Hard,
    OnHardLimit,
    OnSoftLimit,
    ScopeType,
    Soft,
)
from flowfabric.engine.amounts import paired
from flowfabric.engine.checking import whole
from flowfabric.errors import InvalidInput

_SCOPE_BYTES: Final = 1_024


class NewBudget(msgspec.Struct, frozen=True, kw_only=True):
    """A budget to be. The three lists go together; a limit of 0 is no limit."""

    budget_id: str = ""
    parent_id: str = ""
    scope_type: str = "global"
    scope_id: str = ""
    enforcement_mode: str = "strict"
    on_hard_limit: str = "reject"
    on_soft_limit: str = "warn"
    reset_interval_ms: int = 0
    dimensions: Sequence[str] = ()
    hard_limits: Sequence[int] = ()
    soft_limits: Sequence[int] = ()


class BudgetCreated(msgspec.Struct, frozen=True):
    """The budget's id, and whether this call made it; one that was there is left as it is."""

    budget_id: str
    is_new: bool


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a report. Only a hard breach is not applied.

    `limit` is the limit that was passed, at the level `budget_id` names.
    """

    outcome: Literal["ok", "soft_breach", "hard_breach", "already_applied"]
    budget_id: str = ""
    dimension: str = ""
    current_usage: int = 0
    limit: int = 0
    attempt_failed: bool = False


class BudgetStatus(msgspec.Struct, frozen=True, kw_only=True):
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


class UsageAndLimits(msgspec.Struct, frozen=True):
    """What admission looks at: limits, and usage of each dimension that has a hard one."""

    hard_limits: dict[str, int]
    soft_limits: dict[str, int]
    usage: dict[str, int]


def budget_from(new: NewBudget, budget_id: str) -> Budget:
    """The budget a caller described, or what is wrong with the description."""
    mode = "strict" if new.enforcement_mode == "hard" else new.enforcement_mode
    return msgspec.convert(
        {
            "budget_id": budget_id,
            "scope_type": _one_of(new.scope_type, "scope_type", ScopeType),
            "scope_id": check_text(new.scope_id, "scope_id", _SCOPE_BYTES),
            "enforcement_mode": _one_of(mode, "enforcement_mode", EnforcementMode),
            "on_hard_limit": _one_of(new.on_hard_limit, "on_hard_limit", OnHardLimit),
            "on_soft_limit": _one_of(new.on_soft_limit, "on_soft_limit", OnSoftLimit),
            "reset_interval_ms": whole(
                new.reset_interval_ms, "reset_interval_ms", 0, MAX_AMOUNT // 2
            ),
            "hard_limits": paired(new.dimensions, new.hard_limits, "limit"),
            "soft_limits": paired(new.dimensions, new.soft_limits, "limit"),
        },
        Budget,
    )


def _one_of(value: str, field: str, values: object) -> str:
    known = get_args(values)
    if value not in known:
        raise InvalidInput(f"{field}: expected one of {', '.join(known)}, got {value!r}")
    return value


def status_of(budget: Budget) -> BudgetStatus:
    return BudgetStatus(
        budget_id=budget.budget_id,
        parent_id=budget.parent_id or None,
        scope_type=budget.scope_type,
        scope_id=budget.scope_id,
        enforcement_mode=budget.enforcement_mode,
        usage=budget.used,
        reserved=budget.reserved,
        hard_limits=budget.hard_limits,
        soft_limits=budget.soft_limits,
        breach_count=budget.breach_count,
        soft_breach_count=budget.soft_breach_count,
        reset_count=budget.reset_count,
        last_breach_at=_shown(budget.last_breach_at),
        last_breach_dim=budget.last_breach_dim or None,
        next_reset_at=_shown(budget.next_reset_at),
        created_at=_shown(budget.created_at),
    )


def _shown(instant: int) -> str | None:
    return str(instant) if instant else None


def breach(hard: Hard, *, attempt_failed: bool = False) -> Usage:
    return Usage(
        outcome="hard_breach",
        budget_id=hard.budget_id,
        dimension=hard.dimension,
        current_usage=hard.used,
        limit=hard.limit,
        attempt_failed=attempt_failed,
    )


def warning(soft: Soft) -> Usage:
    return Usage(
        outcome="soft_breach",
        budget_id=soft.budget_id,
        dimension=soft.dimension,
        current_usage=soft.used,
        limit=soft.limit,
    )
