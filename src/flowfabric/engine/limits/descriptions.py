"""Budgets and amounts: checked as callers give them, converted to what callers are shown."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol, get_args

import msgspec
from msgspec.structs import asdict

from flowfabric.core.ids import check_namespace, check_text
from flowfabric.core.limits.budgets import (
    MAX_AMOUNT,
    Budget,
    BudgetRules,
    EnforcementMode,
    Hard,
    OnHardLimit,
    OnSoftLimit,
    ScopeType,
    Soft,
)
from flowfabric.engine.checking import whole
from flowfabric.errors import InvalidInput
from flowfabric.operations.budgets import BudgetStatus, HardBreach, NewBudget, SoftBreach

MOST_DIMENSIONS: Final = 64
_NAME_BYTES: Final = 256
_KEY_BYTES: Final = 1_024
_RESERVED: Final = frozenset({"breached_at", "_init"})


def check_names(names: Sequence[str]) -> None:
    """Refuse dimension names that are too many, given twice, or used by stores."""
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InvalidInput("dimensions: expected a list of names")
    if len(names) > MOST_DIMENSIONS:
        raise InvalidInput(f"too_many_dimensions: limit={MOST_DIMENSIONS}, got={len(names)}")
    seen: set[str] = set()
    for name in names:
        check_text(name, "dimension", _NAME_BYTES, allow_empty=False, allow_control=False)
        if name in _RESERVED or ":" in name:
            raise InvalidInput(f"dimension {name}: reserved, or has a colon")
        if name in seen:
            raise InvalidInput(f"dimension {name}: given twice")
        seen.add(name)


def paired(names: Sequence[str], values: Sequence[int], what: str) -> dict[str, int]:
    """Amounts by name, from two lists of equal length."""
    check_names(names)
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) != len(names):
        count = len(values) if isinstance(values, Sequence) else 0
        raise InvalidInput(
            f"dimension_{what}_array_mismatch: {len(names)} dimensions, {count} values"
        )
    return {name: amount(value, name) for name, value in zip(names, values, strict=True)}


def amounts_of(given: Mapping[str, int]) -> dict[str, int]:
    if not isinstance(given, Mapping):
        raise InvalidInput(f"dimensions: expected a mapping, got {type(given).__name__}")
    return paired(tuple(given), tuple(given.values()), "delta")


def amount(value: object, dimension: str) -> int:
    """A whole number, not negative and small enough to be exact in every store."""
    return whole(value, f"dimension {dimension}", 0, MAX_AMOUNT)


def check_key(value: str, field: str, *, allow_empty: bool = True) -> str:
    return check_text(value, field, _KEY_BYTES, allow_empty=allow_empty)


_SCOPE_BYTES: Final = 1_024


class UsageAndLimits(msgspec.Struct, frozen=True):
    """What admission looks at: limits, and usage of each dimension that has a hard one."""

    hard_limits: dict[str, int]
    soft_limits: dict[str, int]
    usage: dict[str, int]


def budget_from(new: NewBudget, budget_id: str) -> Budget:
    """The budget a caller describes; the first fault of the description is raised."""
    return msgspec.convert(
        {
            "budget_id": budget_id,
            "namespace": check_namespace(new.namespace),
            "scope_type": _one_of(new.scope_type, "scope_type", ScopeType),
            "scope_id": check_text(new.scope_id, "scope_id", _SCOPE_BYTES),
            **asdict(rules_from(new, BudgetRules())),
            "hard_limits": paired(new.dimensions, new.hard_limits, "limit"),
            "soft_limits": paired(new.dimensions, new.soft_limits, "limit"),
        },
        Budget,
    )


class GivenRules(Protocol):
    """Rules as a caller gives them; None where it leaves one out."""

    @property
    def enforcement_mode(self) -> str | None: ...

    @property
    def on_hard_limit(self) -> str | None: ...

    @property
    def on_soft_limit(self) -> str | None: ...

    @property
    def reset_interval_ms(self) -> int | None: ...


def rules_from(given: GivenRules, before: BudgetRules) -> BudgetRules:
    """The rules of a caller, checked; what it leaves out stays as it was before."""
    mode, interval = given.enforcement_mode, given.reset_interval_ms
    if mode == "hard":
        mode = "strict"
    if interval is None:
        interval = before.reset_interval_ms
    return BudgetRules(
        enforcement_mode=_chosen(
            mode, before.enforcement_mode, "enforcement_mode", EnforcementMode
        ),
        on_hard_limit=_chosen(
            given.on_hard_limit, before.on_hard_limit, "on_hard_limit", OnHardLimit
        ),
        on_soft_limit=_chosen(
            given.on_soft_limit, before.on_soft_limit, "on_soft_limit", OnSoftLimit
        ),
        reset_interval_ms=whole(interval, "reset_interval_ms", 0, MAX_AMOUNT // 2),
    )


def _chosen(value: str | None, before: str, field: str, values: object) -> Any:
    return before if value is None else _one_of(value, field, values)


def _one_of(value: str, field: str, values: object) -> Any:
    known = get_args(values)
    if value not in known:
        raise InvalidInput(f"{field}: expected one of {', '.join(known)}, got {value!r}")
    return value


def status_of(budget: Budget) -> BudgetStatus:
    return BudgetStatus(
        budget_id=budget.budget_id,
        namespace=budget.namespace,
        parent_id=budget.parent_id,
        scope_type=budget.scope_type,
        scope_id=budget.scope_id,
        enforcement_mode=budget.enforcement_mode,
        on_hard_limit=budget.on_hard_limit,
        on_soft_limit=budget.on_soft_limit,
        reset_interval_ms=budget.reset_interval_ms,
        usage=budget.used,
        reserved=budget.reserved,
        hard_limits=budget.hard_limits,
        soft_limits=budget.soft_limits,
        breach_count=budget.breach_count,
        soft_breach_count=budget.soft_breach_count,
        reset_count=budget.reset_count,
        last_breach_at=budget.last_breach_at,
        last_breach_dim=budget.last_breach_dim,
        next_reset_at=budget.next_reset_at,
        created_at=budget.created_at,
    )


def breach(hard: Hard, *, attempt_failed: bool = False) -> HardBreach:
    return HardBreach(
        dimension=hard.dimension,
        current_usage=hard.used,
        hard_limit=hard.limit,
        attempt_failed=attempt_failed,
        budget_id=hard.budget_id,
    )


def warning(soft: Soft) -> SoftBreach:
    return SoftBreach(
        dimension=soft.dimension,
        current_usage=soft.used,
        soft_limit=soft.limit,
        budget_id=soft.budget_id,
    )
