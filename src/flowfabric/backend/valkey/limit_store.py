"""The mechanisms about limits: counters that many contend for, each changed by a function."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from flowfabric.backend.base import Answered
from flowfabric.backend.reference.budgets import read_budgets
from flowfabric.backend.reference.definitions import start_define
from flowfabric.backend.reference.gates import read_gates
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import Work
from flowfabric.backend.valkey.admission import SpreadAdmission
from flowfabric.backend.valkey.calls import Calls, Reply, side_by_side
from flowfabric.backend.valkey.commits import Commits, Place
from flowfabric.backend.valkey.fan_out import fetch
from flowfabric.backend.valkey.keys import key_of, stored_key
from flowfabric.backend.valkey.limit_packing import (
    BudgetAct,
    GateAct,
    Places,
    admit_answer,
    amounts_of,
    budget_answer,
    fault_of,
    gate_answer,
    pack_admission,
    pack_budget_act,
    pack_gate_act,
    places_in,
)
from flowfabric.backend.valkey.limit_rows import StoredLimits
from flowfabric.backend.valkey.packing import Args
from flowfabric.backend.valkey.requests import Act, Admitting
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
from flowfabric.core.limits.gates import quota_gate
from flowfabric.errors import FlowFabricError

A = TypeVar("A")


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
        return await self._read_limits(ids, self._places.budget, read_budgets)

    async def attached(self, budget_id: str, after: str, limit: int) -> list[str]:
        tag = self._places.budget(budget_id)
        since = f"({after}" if after else "-"
        words = ("ZRANGE", stored_key("attached", tag, budget_id), since, "+", "BYLEX")
        read = (*words, "LIMIT", "0", str(limit))
        (found,) = (await fetch(self._calls, [(read, key_of(tag))])).checked()
        return [execution_id.decode() for execution_id in found]

    # ---- gates

    async def extend(self, items: Sequence[Extend]) -> list[Answered[bool]]:
        return await self._act_on_gates(items)

    async def vacate(self, items: Sequence[Vacate]) -> list[Answered[Freed]]:
        return await self._act_on_gates(items)

    async def gates(self, names: Sequence[str]) -> list[GateSeen | None]:
        return await self._read_limits(names, self._places.gate, read_gates)

    async def _read_limits(
        self,
        names: Sequence[str],
        tag: Callable[[str], str],
        read: Callable[[Transaction, Sequence[str]], list[A]],
    ) -> list[A]:
        """Limits as the reference shows them, partition by partition."""
        own: dict[str, list[str]] = {}
        for name in names:
            own.setdefault(tag(name), []).append(name)

        async def run(at: str) -> list[A]:
            return await Commits(self._calls).read(_place(at), lambda tx: read(tx, own[at]))

        parts = await side_by_side(run, list(own))
        found = {
            name: one
            for at, part in zip(own, parts, strict=True)
            for name, one in zip(own[at], part, strict=True)
        }
        return [found[name] for name in names]

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
        return _place(tag)

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


def _place(tag: str) -> Place:
    return Place(key_of(tag), "limits", tag, StoredLimits(tag).tables)


def _key(item: Act) -> str:
    return key_of(item.tag)


def _same(item: Any, _: Args) -> Any:
    return item


def _raw(_: Any, answer: Any, __: Reply) -> Any:
    return answer
