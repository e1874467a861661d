"""The mechanisms about limits, as part of a store that runs the reference."""

from collections.abc import Sequence

from flowfabric.backend.base import Answered
from flowfabric.backend.reference import (
    admission,
    budgets,
    definitions,
    gates,
)
from flowfabric.backend.reference.limit_tables import ATTACHED
from flowfabric.backend.reference.work import Runner, Work
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


class ReferenceLimits:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def define(self, items: Sequence[Definition]) -> list[Answered[Defined]]:
        return await self._runner.write(Work("define", definitions.start_define, items))

    async def spend(self, items: Sequence[Spend]) -> list[Answered[SpendAnswer]]:
        return await self._runner.write(Work("spend", budgets.start_spend, items))

    async def release(self, items: Sequence[Release]) -> list[Answered[Freed]]:
        return await self._runner.write(Work("release", budgets.start_release, items))

    async def reset(self, items: Sequence[Reset]) -> list[Answered[Freed]]:
        return await self._runner.write(Work("reset", budgets.start_reset, items))

    async def reserve(
        self, items: Sequence[Reserve]
    ) -> list[Answered[Reserved | Hard | AlreadyApplied]]:
        return await self._runner.write(Work("reserve", budgets.start_reserve, items))

    async def commit(self, items: Sequence[Commit]) -> list[Answered[SpendAnswer]]:
        return await self._runner.write(Work("commit", budgets.start_commit, items))

    async def cancel(self, items: Sequence[Cancel]) -> list[Answered[Spending | AlreadyApplied]]:
        return await self._runner.write(Work("cancel", budgets.start_cancel, items))

    async def admit(self, items: Sequence[Admission]) -> list[Answered[AdmitAnswer]]:
        return await self._runner.write(Work("admit", admission.start_admit, items))

    async def extend(self, items: Sequence[Extend]) -> list[Answered[bool]]:
        return await self._runner.write(Work("extend", admission.start_extend, items))

    async def vacate(self, items: Sequence[Vacate]) -> list[Answered[Freed]]:
        return await self._runner.write(Work("vacate", admission.start_vacate, items))

    async def budgets(self, ids: Sequence[str]) -> list[Chain]:
        return await self._runner.read(lambda tx: budgets.read_budgets(tx, ids))

    async def gates(self, names: Sequence[str]) -> list[GateSeen | None]:
        return await self._runner.read(lambda tx: gates.read_gates(tx, names))

    async def attached(self, budget_id: str, after: str, limit: int) -> list[str]:
        behind = (budget_id, after) if after else None
        rows = await self._runner.read(
            lambda tx: tx.tables.range(ATTACHED, (budget_id,), behind, limit)
        )
        return [execution_id for (_, execution_id), _ in rows]
