"""Budgets and quotas by name, defined and changed where they are used."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

import msgspec

from flowfabric.core.ids import limit_id
from flowfabric.errors import ConfigError, Conflict
from flowfabric.fabric.submitter import MOST_PER_PAGE, every
from flowfabric.operations.budgets import (
    BudgetChange,
    BudgetCreated,
    BudgetStatus,
    NamedBudget,
    NamedQuota,
    NewBudget,
    NewQuota,
    QuotaChange,
    QuotaCreated,
    QuotaStatus,
)
from flowfabric.operations.nouns import Calls
from flowfabric.worker.durations import Duration, milliseconds


class Budget(msgspec.Struct, frozen=True):
    """A budget that is defined; tasks name it in their options."""

    id: str
    is_new: bool
    describe: Callable[[str], Awaitable[BudgetStatus]]

    async def status(self) -> BudgetStatus:
        """Its limits, and what is used of them."""
        return await self.describe(self.id)


class Quota(msgspec.Struct, frozen=True):
    """A quota that is defined; tasks name it in their options."""

    id: str
    is_new: bool
    describe: Callable[[str], Awaitable[QuotaStatus]]

    async def status(self) -> QuotaStatus:
        """Its limits, and what counts against them."""
        return await self.describe(self.id)


class WantedBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The limits a program wants; None leaves those of an existing budget as they are. A dimension
    that `hard` or `soft` does not name has no such limit."""

    hard: Mapping[str, int] | None = None
    soft: Mapping[str, int] | None = None
    reset_ms: int | None = None
    on_hard_limit: str | None = None

    def new(self) -> dict[str, Any]:
        hard, soft = self.hard or {}, self.soft or {}
        names = tuple(dict.fromkeys([*hard, *soft]))
        return {
            "dimensions": names,
            "hard_limits": [hard.get(name, 0) for name in names],
            "soft_limits": [soft.get(name, 0) for name in names],
            "reset_interval_ms": self.reset_ms or 0,
            "on_hard_limit": self.on_hard_limit or "reject",
        }

    def change(self, known: BudgetStatus) -> BudgetChange:
        return BudgetChange(
            hard_limits=_all_of(self.hard, known.hard_limits),
            soft_limits=_all_of(self.soft, known.soft_limits),
            reset_interval_ms=self.reset_ms,
            on_hard_limit=self.on_hard_limit,
        )


def _all_of(wanted: Mapping[str, int] | None, known: Mapping[str, int]) -> dict[str, int] | None:
    return None if wanted is None else {**dict.fromkeys(known, 0), **wanted}


class WantedQuota(msgspec.Struct, frozen=True, kw_only=True):
    """The limits a program wants; None leaves those of an existing quota as they are."""

    starts: int | None = None
    window: Duration | None = None
    concurrent: int | None = None
    jitter: Duration | None = None

    def new(self) -> dict[str, Any]:
        window = "1m" if self.window is None else self.window
        return {"window_seconds": whole_seconds(window), **_given(self._fields())}

    def change(self, known: QuotaStatus) -> QuotaChange:
        return QuotaChange(**_given(self._fields()))

    def _fields(self) -> dict[str, int | None]:
        return {
            "window_seconds": None if self.window is None else whole_seconds(self.window),
            "max_requests_per_window": self.starts,
            "max_concurrent": self.concurrent,
            "jitter_ms": None if self.jitter is None else milliseconds(self.jitter, "jitter"),
        }


def _given(fields: Mapping[str, int | None]) -> dict[str, int]:
    return {name: one for name, one in fields.items() if one is not None}


def whole_seconds(window: Duration) -> int:
    seconds, rest = divmod(milliseconds(window, "window"), 1000)
    if rest:
        raise ConfigError(f"quota.window: expected whole seconds, got {window!r}")
    return seconds


class Limits:
    """The budgets and quotas of one namespace."""

    def __init__(self, calls: Calls, namespace: str) -> None:
        self._calls = calls
        self._namespace = namespace

    async def budget(
        self, name: str, parent: str | None, terms: WantedBudget, update: bool
    ) -> Budget:
        """Define it, or bring one that exists to these terms."""
        new = NewBudget(
            namespace=self._namespace,
            parent_id=limit_id(self._namespace, parent) if parent else "",
            **_named(name, "budget_id"),
            **terms.new(),
        )
        made = await self._calls.create_budget(new)
        is_new = isinstance(made, BudgetCreated)
        if not is_new:
            known = await self._calls.describe_budget(made.budget_id)
            change = terms.change(known)
            if _differs(f"budget {name}", change, known, update=update):
                await self._calls.change_budget(made.budget_id, change)
        return Budget(made.budget_id, is_new, self._calls.describe_budget)

    async def quota(self, name: str, terms: WantedQuota, update: bool) -> Quota:
        """Define it, or bring one that exists to these terms."""
        new = NewQuota(namespace=self._namespace, **_named(name, "quota_policy_id"), **terms.new())
        made = await self._calls.create_quota(new)
        is_new = isinstance(made, QuotaCreated)
        if not is_new:
            known = await self._calls.describe_quota(made.quota_policy_id)
            change = terms.change(known)
            if _differs(f"quota {name}", change, known, update=update):
                await self._calls.change_quota(made.quota_policy_id, change)
        return Quota(made.quota_policy_id, is_new, self._calls.describe_quota)

    def budgets(self) -> AsyncIterator[NamedBudget]:
        read = self._calls.list_budgets
        return every(lambda cursor: read(self._namespace, cursor, MOST_PER_PAGE))

    def quotas(self) -> AsyncIterator[NamedQuota]:
        read = self._calls.list_quotas
        return every(lambda cursor: read(self._namespace, cursor, MOST_PER_PAGE))


def _named(name: str, field: str) -> dict[str, Any]:
    """A name, or an id that a program has from elsewhere."""
    try:
        return {field: str(UUID(name))}
    except ValueError:
        return {"name": name}


def _facts(struct: msgspec.Struct) -> dict[str, Any]:
    """Each limit by its own name."""
    facts: dict[str, Any] = {}
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, Mapping):
            facts.update({f"{name}.{one}": limit for one, limit in value.items()})
        elif value is not None:
            facts[name] = value
    return facts


def different(wanted: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, str]:
    """Which limits are others than wanted, with both values."""
    return {
        name: f"{name} is {known.get(name, 0)}, not {one}"
        for name, one in wanted.items()
        if (name in known and known[name] != one) or (name not in known and one)
    }


def _differs(what: str, change: msgspec.Struct, known: msgspec.Struct, *, update: bool) -> bool:
    """Whether limits are others than wanted, which is an error unless they may be changed."""
    fields = different(_facts(change), _facts(known))
    if fields and not update:
        raise Conflict(f"{what} exists with other limits: {'; '.join(fields.values())}")
    return bool(fields)
