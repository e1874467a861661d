"""Slots follow leases: kept while one is renewed, given back when the work no longer runs.

A slot is stored in another partition than its execution, so it does not change in the same step. It
need not: a slot that is not given back expires.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final

from flowfabric.backend.coalesce import Store
from flowfabric.backend.optimistic import WRITE_CONFLICT, WriteConflict, decide
from flowfabric.core.limits.asks import Extend, Freed, Obtained, Vacate
from flowfabric.core.limits.gates import Admissible, key_gate, quota_gate
from flowfabric.core.plan import Applied, Plan, Refused
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import unblock_plan, ungrant_plan
from flowfabric.core.states import FINAL
from flowfabric.engine.draining import drain
from flowfabric.errors import FlowFabricError

_log = logging.getLogger("flowfabric.slots")

# How much longer than its lease or reservation a slot lasts.
GRACE_MS: Final = 5_000
# Rules after which an execution that held a slot runs no longer. A lost one may still run: its
# slot ends by itself, or goes to the next claim of the same execution.
_LEAVING: Final = frozenset(
    {
        "complete",
        "fail",
        "delay",
        "park",
        "suspend",
        "cancel",
        "expire",
        "exhaust",
        "timeout",
        "ungrant",
    }
)


def gates_of(record: Record) -> tuple[str, ...]:
    """The gates at which an execution may hold a slot."""
    quotas = tuple(quota_gate(quota_id) for quota_id in record.quota_ids)
    if not record.concurrency_key:
        return quotas
    return (*quotas, key_gate(record.namespace, record.concurrency_key))


class Slots:
    """Changes slots as far as possible: a failure is logged, and the slot expires."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tasks: set[asyncio.Task[None]] = set()

    async def follow(self, plan: Plan, applied: Applied, before: Record | None = None) -> None:
        """Extend the slots of a gated execution after a renewal, give them back after its run.

        `before` is the record as the plan found it, if the caller knows it.
        """
        if plan.rule == "renew" and plan.timer and plan.timer.lease_for:
            hold_ms = plan.timer.lease_for + GRACE_MS
            await self._finish(self._renewed(plan, hold_ms, before))
        elif plan.rule in _LEAVING and applied.brief.state != "active":
            await self._finish(self._left(plan, before, has_ended=applied.brief.state in FINAL))

    async def extend(self, record: Record, holder: str, lease_ms: int) -> None:
        """Let the slots of an execution last as long as the lease `holder`."""
        await self._finish(self._extend(record, holder, lease_ms + GRACE_MS))

    async def give_back(self, execution_id: str, holder: str, obtained: Sequence[Obtained]) -> None:
        """Return exactly what an admission obtained, because the execution does not start."""
        items = [
            Vacate(
                gate=one.gate,
                execution_id=execution_id,
                holder=holder,
                slot=one.slot,
                entry=one.entry,
            )
            for one in obtained
        ]
        await self._finish(self._vacate(items))

    async def wake(self, admissible: Iterable[Admissible]) -> None:
        """Unblock executions that a limit has room for now."""
        await asyncio.gather(*(self._wake(one) for one in admissible))

    async def _wake(self, admissible: Admissible) -> None:
        async def attempt() -> WriteConflict | None:
            answer = await self._store.apply(unblock_plan(admissible))
            plan = ungrant_plan(admissible, answer.seen) if isinstance(answer, Refused) else None
            # Refused twice: it was blocked in between, so both are tried again.
            is_done = plan is None or isinstance(await self._store.apply(plan), Applied)
            return None if is_done else WRITE_CONFLICT

        try:
            await decide("execution", admissible.execution_id, attempt)
        except FlowFabricError as fault:
            _log.warning(
                "execution %s could not be unblocked; its timer tries again: %s",
                admissible.execution_id,
                fault,
            )

    async def drain(self, *, waits: bool = True) -> bool:
        """Wait for work in progress; whether all of it is done. A slot that is not given back
        expires."""
        return not await drain(lambda: self._tasks, waits=waits)

    async def _finish(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the work to its end even if the caller is cancelled."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(task)

    async def _renewed(self, plan: Plan, hold_ms: int, before: Record | None) -> None:
        record = before or await self._read(plan.target)
        fence = plan.guard.fence
        if record is not None and fence is not None:
            await self._extend(record, fence.lease_id, hold_ms)

    async def _left(self, plan: Plan, before: Record | None, *, has_ended: bool) -> None:
        record = before or await self._read(plan.target)
        holder = _holder(plan, before)
        # Without the name, the slot may be that of a later attempt, unless the execution ended.
        if record is not None and (holder or has_ended):
            await self._vacate(
                [
                    Vacate(gate=gate, execution_id=record.execution_id, holder=holder)
                    for gate in gates_of(record)
                ]
            )

    async def _extend(self, record: Record, holder: str, hold_ms: int) -> None:
        execution_id = record.execution_id
        items = [Extend(gate, execution_id, holder, hold_ms) for gate in gates_of(record)]
        answers = await asyncio.gather(
            *(self._store.extend(item) for item in items), return_exceptions=True
        )
        for item, answer in zip(items, answers, strict=True):
            if isinstance(answer, BaseException):
                _log.warning(
                    "slot of execution %s at %s was not extended: %s",
                    execution_id,
                    item.gate,
                    answer,
                )

    async def _vacate(self, items: Sequence[Vacate]) -> None:
        answers = await asyncio.gather(
            *(self._store.vacate(item) for item in items), return_exceptions=True
        )
        admissible: list[Admissible] = []
        for item, answer in zip(items, answers, strict=True):
            if isinstance(answer, Freed):
                admissible += answer.admissible
            else:
                _log.warning(
                    "slot of execution %s was not given back and expires: %s",
                    item.execution_id,
                    answer,
                )
        if admissible:
            await self.wake(admissible)

    async def _read(self, execution_id: str) -> Record | None:
        try:
            seen = await self._store.read(execution_id)
        except FlowFabricError as fault:
            _log.warning(
                "execution %s could not be read, so its slots expire: %s", execution_id, fault
            )
            return None
        return seen.record if seen else None


def _holder(plan: Plan, before: Record | None) -> str:
    """The name that the slot was held under: of the lease, or of a grant that has ended."""
    if plan.guard.fence is not None:
        return plan.guard.fence.lease_id
    return (before.grant_id or before.lease_id) if before else ""
