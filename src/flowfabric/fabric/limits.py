"""Budgets and quotas by name, defined where they are used."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from flowfabric.errors import ConfigError
from flowfabric.operations.budgets import BudgetStatus, NewQuota
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


def dimensions_of(hard: Mapping[str, int], soft: Mapping[str, int]) -> dict[str, Any]:
    """Limits per dimension: above a soft one a report is flagged, above a hard one refused."""
    names = tuple(dict.fromkeys([*hard, *soft]))
    return {
        "dimensions": names,
        "hard_limits": [hard.get(name, 0) for name in names],
        "soft_limits": [soft.get(name, 0) for name in names],
    }


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
