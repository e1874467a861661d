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
from flowfabric.backend.valkey.calls import Calls, side_by_side
from flowfabric.backend.valkey.commits import Commits, Place
from flowfabric.backend.valkey.fan_out import fetch
from flowfabric.backend.valkey.keys import key_of, stored_key
from flowfabric.backend.valkey.limit_packing import (
    Acting,
    Places,
    act_answer,
    admit_answer,
    pack_act,
    pack_admission,
    places_in,
)
from flowfabric.backend.valkey.limit_rows import limit_tables
from flowfabric.backend.valkey.requests import Admitting
from flowfabric.core.limits import asks
from flowfabric.core.limits.budgets import Chain, Hard
from flowfabric.core.limits.gates import quota_gate

A = TypeVar("A")


class LimitMechanism:
    """On one server a batch is one call, whatever partitions it touches; in a cluster it is one
    call per partition."""

    _calls: Calls

    @property
    def _places(self) -> Places:
        return places_in(self._calls.counts)

    # ---- budgets

    async def spend(self, items: Sequence[asks.Spend]) -> list[Answered[asks.SpendAnswer]]:
        return await self._act("spend", items)

    async def release(self, items: Sequence[asks.Release]) -> list[Answered[asks.Freed]]:
        return await self._act("spend", items)

    async def reset(self, items: Sequence[asks.Reset]) -> list[Answered[asks.Freed]]:
        return await self._act("spend", items)

    async def reserve(
        self, items: Sequence[asks.Reserve]
    ) -> list[Answered[asks.Reserved | Hard | asks.AlreadyApplied]]:
        return await self._act("spend", items)

    async def commit(self, items: Sequence[asks.Commit]) -> list[Answered[asks.SpendAnswer]]:
        return await self._act("spend", items)

    async def cancel(
        self, items: Sequence[asks.Cancel]
    ) -> list[Answered[asks.Spending | asks.AlreadyApplied]]:
        return await self._act("spend", items)

    async def budgets(self, ids: Sequence[str]) -> list[Chain]:
        return await self._read_limits(ids, self._places.budget, read_budgets)

    async def attached(self, budget_id: str, after: str, limit: int) -> list[str]:
        tag = self._places.budget(budget_id)
        since = f"({after}" if after else "-"
        words = ("ZRANGE", stored_key("attached", tag, budget_id), since, "+", "BYLEX")
        read = (*words, "LIMIT", "0", str(limit))
        (found,) = (await fetch(self._calls, [read])).checked()
        return [execution_id.decode() for execution_id in found]

    # ---- gates

    async def extend(self, items: Sequence[asks.Extend]) -> list[Answered[bool]]:
        return await self._act("slots", items)

    async def vacate(self, items: Sequence[asks.Vacate]) -> list[Answered[asks.Freed]]:
        return await self._act("slots", items)

    async def gates(self, names: Sequence[str]) -> list[asks.GateSeen | None]:
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

    async def admit(self, items: Sequence[asks.Admission]) -> list[Answered[asks.AdmitAnswer]]:
        if self._calls.topology.is_cluster:
            return await SpreadAdmission(self._calls, self._places).admit(items)
        packed = [pack_admission(item, map(self._places.ask, item.asks)) for item in items]
        key = key_of(self._places.gates[0])
        reply = await self._calls.run(
            "admit", key, Admitting(items=packed, promised=(), restorable=False)
        )
        return [admit_answer(one) for one in reply.head]

    # ---- definitions

    async def define(self, items: Sequence[asks.Definition]) -> list[Answered[asks.Defined]]:
        work = Work("define", start_define, items)
        return await Commits(self._calls).run_each(work, self._place_of)

    def _place_of(self, item: asks.Definition) -> Place:
        if isinstance(item, asks.DefineBudget | asks.LimitBudget):
            own = item.budget if isinstance(item, asks.DefineBudget) else item
            return _place(self._places.budget(own.budget_id))
        return _place(self._places.gate(quota_gate(item.quota.quota_policy_id)))

    async def _act(self, function: str, items: Sequence[Acting]) -> list[Any]:
        places = self._places
        return await self._calls.batches(
            function,
            items,
            lambda item: key_of(places.of(item)),
            lambda item, _: pack_act(places, item),
            lambda item, answer, _: act_answer(item, answer),
        )


def _place(tag: str) -> Place:
    return Place(key_of(tag), "limits", tag, limit_tables(tag))
