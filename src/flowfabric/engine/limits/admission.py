"""Admission: whether the limits of an execution let it start now, and what happens if not."""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from flowfabric.core.due import DueContext, next_look_ms
from flowfabric.core.limits.asks import (
    Admission,
    AdmitAnswer,
    Admitted,
    Ask,
    BudgetAsk,
    Denied,
    KeyAsk,
    Obtained,
    QuotaAsk,
    RateExceeded,
    detail_of,
    reason_of,
)
from flowfabric.core.limits.budgets import Closed
from flowfabric.core.plan import Applied
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import SHORTEST_LOOK_MS, Block, turn_away
from flowfabric.engine.deps import Deps
from flowfabric.engine.limits.slots import GRACE_MS
from flowfabric.errors import FlowFabricError

_log = logging.getLogger("flowfabric.admission")

_SPENDING: Final = frozenset({"budget"})


class AdmittedRecord(msgspec.Struct, frozen=True):
    """A record that may be leased, and what this admission obtained for it."""

    record: Record
    obtained: tuple[Obtained, ...]


def asks_of(record: Record, reason: str = "") -> tuple[Ask, ...]:
    """The limits of an execution in the order they are asked; of a blocked one only those of the
    kind that blocks it."""
    budgets = tuple(BudgetAsk(budget_id) for budget_id in record.budget_ids)
    if reason in _SPENDING:
        return budgets
    starts: tuple[Ask, ...] = tuple(QuotaAsk(quota_id) for quota_id in record.quota_ids)
    if record.concurrency_key:
        key = KeyAsk(record.namespace, record.concurrency_key, record.concurrency_limit)
        starts = (*starts, key)
    return starts if reason else (*budgets, *starts)


class Admissions:
    """Asks limits for records that are reserved for the caller. Fails closed: a limit that cannot
    be read admits nothing."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        # How often a limit turned work away: ("budget", dimension), ("quota", rate or concurrency).
        self.hits: Counter[tuple[str, str]] = Counter()

    async def admit(self, records: Sequence[Record], lease_ms: int) -> list[AdmittedRecord]:
        """Those that may be leased. The others are blocked with the reason; what this call obtained
        is given back when a limit cannot be read."""
        items = [_admission(record, lease_ms) for record in records]
        answers = await self._answers(items)
        faults = [answer for answer in answers if isinstance(answer, BaseException)]
        admitted = [
            AdmittedRecord(record, answer.obtained)
            for record, answer in zip(records, answers, strict=True)
            if isinstance(answer, Admitted)
        ]
        if faults:
            await asyncio.gather(*(self.give_back(one) for one in admitted))
            raise faults[0]
        refused = [
            self._turn_away(record, answer)
            for record, answer in zip(records, answers, strict=True)
            if not isinstance(answer, Admitted | BaseException)
        ]
        await asyncio.gather(*refused)
        return admitted

    async def give_back(self, admitted: AdmittedRecord) -> None:
        """Return what was obtained for a record that could not be leased after all."""
        if admitted.obtained:
            record = admitted.record
            await self._deps.slots.give_back(
                record.execution_id, record.grant_id, admitted.obtained
            )

    async def look(
        self, records: Sequence[Record], now: int
    ) -> dict[str, DueContext | FlowFabricError]:
        """Whether the limits that block these records would let them through, or when to look
        again; those that cannot be read, the error. One free place is promised only once."""
        items = [
            Admission(
                execution_id=record.execution_id,
                asks=asks_of(record, record.reason),
                rank=record.rank,
                rate=record.next != "resume",
                look_ms=next_look_ms(record, now),
                dry=True,
            )
            for record in records
        ]
        answers = await self._answers(items)
        found: dict[str, DueContext | FlowFabricError] = {}
        for item, answer in zip(items, answers, strict=True):
            found[item.execution_id] = self._context(item, answer)
        return found

    def _context(
        self, item: Admission, answer: AdmitAnswer | FlowFabricError
    ) -> DueContext | FlowFabricError:
        if isinstance(answer, FlowFabricError):
            return answer
        chance = self._deps.chance()
        if isinstance(answer, Admitted):
            return DueContext(admissible=True, jitter=chance)
        wait = self._wait(answer) if isinstance(answer, RateExceeded) else item.look_ms
        return DueContext(look_in_ms=wait, jitter=chance)

    async def _answers(self, items: Sequence[Admission]) -> list[AdmitAnswer | FlowFabricError]:
        """All answers of one call, an error in the place of the item it belongs to."""
        asked = (self._deps.store.admit(item) for item in items)
        answers: list[AdmitAnswer | FlowFabricError] = []
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException) and not isinstance(answer, FlowFabricError):
                raise answer
            answers.append(answer)
        return answers

    async def _turn_away(self, record: Record, denied: Denied) -> None:
        """A record that changed meanwhile is not blocked, and needs not be."""
        self._count(denied)
        wait = self._wait(denied) if isinstance(denied, RateExceeded) else SHORTEST_LOOK_MS
        why = Block(reason_of(denied), detail_of(denied, wait), wait)
        try:
            answer = await self._deps.store.apply(turn_away(record, why))
        except FlowFabricError as fault:
            _log.warning(
                "execution %s could not be blocked and is offered again: %s",
                record.execution_id,
                fault,
            )
            return
        if not isinstance(answer, Applied):
            _log.info("execution %s changed before it could be blocked", record.execution_id)

    def _wait(self, denied: RateExceeded) -> int:
        """The chance spreads those who would all come back at the same moment."""
        spread = min(denied.jitter_ms, int(self._deps.chance() * (denied.jitter_ms + 1)))
        return max(1, denied.retry_after_ms + spread)

    def _count(self, denied: Denied) -> None:
        if isinstance(denied, Closed):
            self.hits["budget", denied.dimension] += 1
        else:
            is_rate = isinstance(denied, RateExceeded)
            self.hits["quota", "rate" if is_rate else "concurrency"] += 1


def _admission(record: Record, lease_ms: int) -> Admission:
    """The reservation's name is also that of the lease that follows, so that the slot needs no new
    holder then."""
    return Admission(
        execution_id=record.execution_id,
        asks=asks_of(record),
        holder=record.grant_id,
        hold_ms=lease_ms + GRACE_MS,
        rank=record.rank,
        rate=record.next != "resume",
        look_ms=SHORTEST_LOOK_MS,
        grant_id=record.grant_id,
    )
