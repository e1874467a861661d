"""The mechanisms about limits: counters that many contend for, each changed by a function."""

from collections.abc import Sequence
from typing import Any, cast

from flowfabric.backend.base import Answered
from flowfabric.backend.reference.definitions import start_define
from flowfabric.backend.reference.work import Work
from flowfabric.backend.valkey.admitting import SpreadAdmission
from flowfabric.backend.valkey.calls import Calls, Reply
from flowfabric.backend.valkey.committing import Commits, Place
from flowfabric.backend.valkey.keys import key_of
from flowfabric.backend.valkey.limit_answers import (
    admit_answer,
    budget_answer,
    chain_of,
    fault_of,
    gate_answer,
    gate_seen,
)
from flowfabric.backend.valkey.limit_packing import (
    BudgetAct,
    GateAct,
    amounts_of,
    pack_admission,
    pack_budget_act,
    pack_gate_act,
)
from flowfabric.backend.valkey.limit_places import Places, places_in
from flowfabric.backend.valkey.limit_requests import Act, Admitting, ListAttached, ReadLimit
from flowfabric.backend.valkey.packing import Args
from flowfabric.backend.valkey.stored_limits import StoredLimits
from flowfabric.core.limits.asks import (
    Admission,
    AdmitAnswer,
    AlreadyApplied,
    Cancel,
    Commit,
    DefineBudget,
    Defined,
    Definition,
    Extend,
    Freed,
    GateSeen,
    LimitBudget,
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
from flowfabric.core.limits.gates import budget_list, quota_gate
from flowfabric.errors import FlowFabricError


class LimitMechanism:
    """On one server a batch is one call, whatever partitions it touches; in a cluster it is one
    call per partition."""

    _calls: Calls

    @property
    def _places(self) -> Places:
        return places_in(self._calls.counts)

    # ---- budgets

    async def spend(self, items: Sequence[Spend]) -> list[Answered[SpendAnswer]]:
        return await self._act_on_budgets(items)

    async def release(self, items: Sequence[Release]) -> list[Answered[Freed]]:
        return await self._act_on_budgets(items)

    async def reset(self, items: Sequence[Reset]) -> list[Answered[Freed]]:
        return await self._act_on_budgets(items)

    async def reserve(
        self, items: Sequence[Reserve]
    ) -> list[Answered[Reserved | Hard | AlreadyApplied]]:
        return await self._act_on_budgets(items)

    async def commit(self, items: Sequence[Commit]) -> list[Answered[SpendAnswer]]:
        return await self._act_on_budgets(items)

    async def cancel(self, items: Sequence[Cancel]) -> list[Answered[Spending | AlreadyApplied]]:
        return await self._act_on_budgets(items)

    async def budgets(self, ids: Sequence[str]) -> list[Chain]:
        wanted = [
            ReadLimit(self._places.budget(budget_id), budget_list(budget_id)) for budget_id in ids
        ]
        shown = await self._calls.batches("limits", wanted, _key, _same, lambda _, one, __: one)
        return [chain_of(one) for one in shown]

    async def attached(self, budget_id: str, after: str, limit: int) -> list[str]:
        tag = self._places.budget(budget_id)
        reply = await self._calls.run(
            "attached", key_of(tag), ListAttached(tag, budget_id, after, limit)
        )
        return cast("list[str]", reply.head)

    # ---- gates

    async def extend(self, items: Sequence[Extend]) -> list[Answered[bool]]:
        return await self._act_on_gates(items)

    async def vacate(self, items: Sequence[Vacate]) -> list[Answered[Freed]]:
        return await self._act_on_gates(items)

    async def gates(self, names: Sequence[str]) -> list[GateSeen | None]:
        wanted = [ReadLimit(self._places.gate(name), name) for name in names]
        shown = await self._calls.batches(
            "limits", wanted, _key, _same, lambda one, found, reply: (found, reply.now)
        )
        return [gate_seen(name, one) for name, one in zip(names, shown, strict=True)]

    async def admit(self, items: Sequence[Admission]) -> list[Answered[AdmitAnswer]]:
        if self._calls.topology.is_cluster:
            return await SpreadAdmission(self._calls, self._places).admit(items)
        packed = [pack_admission(item, map(self._places.ask, item.asks)) for item in items]
        key = key_of(self._places.gates[0])
        reply = await self._calls.run(
            "admit", key, Admitting(items=packed, promised=(), restorable=False)
        )
        return [admit_answer(one) for one in reply.head]

    # ---- definitions

    async def define(self, items: Sequence[Definition]) -> list[Answered[Defined]]:
        work = Work("define", start_define, items)
        return await Commits(self._calls).run_each(work, self._place_of)

    def _place_of(self, item: Definition) -> Place:
        if isinstance(item, DefineBudget | LimitBudget):
            tag = self._places.budget(
                item.budget.budget_id if isinstance(item, DefineBudget) else item.budget_id
            )
        else:
            tag = self._places.gate(quota_gate(item.quota.quota_policy_id))
        return Place(key_of(tag), "limits", tag, StoredLimits(tag).tables)

    async def _act_on_budgets(self, items: Sequence[BudgetAct]) -> list[Any]:
        packed = [pack_budget_act(self._places, item) for item in items]
        answers = await self._calls.batches("spend", packed, _key, _same, _raw)
        return [
            answer
            if isinstance(answer, FlowFabricError)
            else fault_of(answer, amounts_of(item)) or budget_answer(answer)
            for item, answer in zip(items, answers, strict=True)
        ]

    async def _act_on_gates(self, items: Sequence[GateAct]) -> list[Any]:
        packed = [pack_gate_act(self._places, item) for item in items]
        answers = await self._calls.batches("slots", packed, _key, _same, _raw)
        return [
            answer if isinstance(answer, FlowFabricError) else gate_answer(item.gate, answer)
            for item, answer in zip(items, answers, strict=True)
        ]


def _key(item: ReadLimit | Act) -> str:
    return key_of(item.tag)


def _same(item: Any, _: Args) -> Any:
    return item


def _raw(_: Any, answer: Any, __: Reply) -> Any:
    return answer
