"""Budgets and quotas by name, defined where they are used."""

from collections.abc import Awaitable, Callable, Mapping

import msgspec

from flowfabric.errors import ConfigError
from flowfabric.operations.budgets import BudgetStatus, NewBudget, NewQuota
from flowfabric.worker.durations import Duration, milliseconds


class Budget(msgspec.Struct, frozen=True):
    """A budget that is defined; tasks name it in their options."""

    id: str
    is_new: bool
    describe: Callable[[str], Awaitable[BudgetStatus]]

    async def status(self) -> BudgetStatus:
        return await self.describe(self.id)


class Quota(msgspec.Struct, frozen=True):
    id: str
    is_new: bool


class BudgetTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Limits per dimension: above a soft one a report is flagged, above a hard one refused."""

    hard: Mapping[str, int] = {}
    soft: Mapping[str, int] = {}
    reset: Duration | None = None
    parent_id: str = ""
    on_hard_limit: str = "reject"
    on_soft_limit: str = "warn"

    def budget(self, budget_id: str) -> NewBudget:
        names = tuple(dict.fromkeys([*self.hard, *self.soft]))
        return NewBudget(
            budget_id=budget_id,
            parent_id=self.parent_id,
            on_hard_limit=self.on_hard_limit,
            on_soft_limit=self.on_soft_limit,
            reset_interval_ms=0 if self.reset is None else milliseconds(self.reset, "reset"),
            dimensions=names,
            hard_limits=[self.hard.get(name, 0) for name in names],
            soft_limits=[self.soft.get(name, 0) for name in names],
        )


def quota_of(
    quota_id: str, starts: int, window: Duration, concurrent: int, jitter: Duration
) -> NewQuota:
    """Limits of starts per window, and of executions that run at once; 0 is no limit."""
    seconds, rest = divmod(milliseconds(window, "window"), 1000)
    if rest:
        raise ConfigError(f"quota.window: expected whole seconds, got {window!r}")
    return NewQuota(
        quota_policy_id=quota_id,
        window_seconds=seconds,
        max_requests_per_window=starts,
        max_concurrent=concurrent,
        jitter_ms=milliseconds(jitter, "jitter"),
    )
