"""The part of the protocol that is about limits: budgets, quotas, concurrency keys."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias, TypeVar

from flowfabric.core.limits.asks import (
    Admission,
    AdmitAnswer,
    AlreadyApplied,
    Cancel,
    Commit,
    Defined,
    Definition,
    Extend,
    Freed,
    GateSeen,
    Release,
    Reserve,
    Reserved,
    Reset,
    Spend,
    SpendAnswer,
    Spending,
    Vacate,
)
from flowfabric.core.limits.budgets import Chain, Hard
from flowfabric.errors import FlowFabricError

T = TypeVar("T")
# One answer of a batch, or the error that belongs to that item alone.
Answered: TypeAlias = T | FlowFabricError


class LimitStore(Protocol):
    """Contended counters. Each item is one atomic step on a budget with its ancestors, or on a
    gate; counting is exact and never passes a hard limit. A limit that cannot be read answers an
    error, never "yes"."""

    async def define(self, items: Sequence[Definition]) -> list[Answered[Defined]]:
        """Create what is not there yet, or change limits."""
        ...

    async def spend(self, items: Sequence[Spend]) -> list[Answered[SpendAnswer]]:
        """Count amounts, unless some level would pass its hard limit."""
        ...

    async def release(self, items: Sequence[Release]) -> list[Answered[Freed]]:
        """Take back what executions spent since the last reset, and drop their ledgers."""
        ...

    async def reset(self, items: Sequence[Reset]) -> list[Answered[Freed]]:
        """Set usage to nothing and schedule the next reset; drop holds that have ended."""
        ...

    async def reserve(
        self, items: Sequence[Reserve]
    ) -> list[Answered[Reserved | Hard | AlreadyApplied]]:
        """Set amounts aside, refused like a spend."""
        ...

    async def commit(self, items: Sequence[Commit]) -> list[Answered[SpendAnswer]]:
        """Count what was really spent in place of a hold."""
        ...

    async def cancel(self, items: Sequence[Cancel]) -> list[Answered[Spending | AlreadyApplied]]:
        """Drop a hold."""
        ...

    async def admit(self, items: Sequence[Admission]) -> list[Answered[AdmitAnswer]]:
        """Ask limits in order: give what is missing of slots and entries, or list the waiter."""
        ...

    async def extend(self, items: Sequence[Extend]) -> list[Answered[bool]]:
        """Move the end of slots, adding those that are missing."""
        ...

    async def vacate(self, items: Sequence[Vacate]) -> list[Answered[Freed]]:
        """Give back slots and entries, and tell who may have them."""
        ...

    async def budgets(self, ids: Sequence[str]) -> list[Chain]:
        """Each budget with its ancestors, leaf first; empty for one that does not exist."""
        ...

    async def gates(self, names: Sequence[str]) -> list[GateSeen | None]: ...

    async def attached(self, budget_id: str, after: str, limit: int) -> list[str]:
        """Executions created under a budget, by id, behind `after`."""
        ...
