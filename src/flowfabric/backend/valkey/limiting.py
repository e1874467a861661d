"""The mechanisms of budgets and gates."""

from collections.abc import Sequence

from flowfabric.backend.limiting import Answered
from flowfabric.backend.valkey.calls import Calls
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
from flowfabric.errors import Unavailable


class LimitMechanism:
    _calls: Calls

    async def define(self, items: Sequence[Definition]) -> list[Answered[Defined]]:
        raise Unavailable("define")

    async def spend(self, items: Sequence[Spend]) -> list[Answered[SpendAnswer]]:
        raise Unavailable("spend")

    async def release(self, items: Sequence[Release]) -> list[Answered[Freed]]:
        raise Unavailable("release")

    async def reset(self, items: Sequence[Reset]) -> list[Answered[Freed]]:
        raise Unavailable("reset")

    async def reserve(
        self, items: Sequence[Reserve]
    ) -> list[Answered[Reserved | Hard | AlreadyApplied]]:
        raise Unavailable("reserve")

    async def commit(self, items: Sequence[Commit]) -> list[Answered[SpendAnswer]]:
        raise Unavailable("commit")

    async def cancel(self, items: Sequence[Cancel]) -> list[Answered[Spending | AlreadyApplied]]:
        raise Unavailable("cancel")

    async def admit(self, items: Sequence[Admission]) -> list[Answered[AdmitAnswer]]:
        raise Unavailable("admit")

    async def extend(self, items: Sequence[Extend]) -> list[Answered[bool]]:
        raise Unavailable("extend")

    async def vacate(self, items: Sequence[Vacate]) -> list[Answered[Freed]]:
        raise Unavailable("vacate")

    async def budgets(self, ids: Sequence[str]) -> list[Chain]:
        raise Unavailable("budgets")

    async def gates(self, names: Sequence[str]) -> list[GateSeen | None]:
        raise Unavailable("gates")

    async def attached(self, budget_id: str, after: str, limit: int) -> list[str]:
        raise Unavailable("attached")
