"""Admission where the limits of one execution lie in several slots of a cluster.

Limits are asked in their order, one call per slot, for a whole batch at once. What an execution got
before a later limit refused it is undone. Whoever was refused meanwhile because of that is asked
again, so that the answers are those of asking one execution after the other.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from flowfabric.backend.base import Answered
from flowfabric.backend.valkey.calls import Calls
from flowfabric.backend.valkey.keys import key_of
from flowfabric.backend.valkey.limit_packing import Places, admit_answer, pack_admission
from flowfabric.backend.valkey.requests import Admitting, AskLimit, Restoring
from flowfabric.core.limits.asks import Admission, AdmitAnswer, Admitted, Obtained
from flowfabric.errors import FlowFabricError


class _Pending(msgspec.Struct):
    """One item on its way through the slots of its limits."""

    item: Admission
    # Per slot the limits asked there, and how many of the slots have been asked.
    stages: list[tuple[str, list[AskLimit]]]
    asked: int = 0
    answer: Answered[AdmitAnswer] = Admitted()
    obtained: list[Obtained] = msgspec.field(default_factory=list)
    # What is to be undone when it is refused, and what its refusal itself changed.
    changes: list[tuple[str, Any]] = msgspec.field(default_factory=list)
    listing: list[tuple[str, Any]] = msgspec.field(default_factory=list)
    # The gate (or budget) that refused it.
    gate: str = ""

    @property
    def is_in(self) -> bool:
        return isinstance(self.answer, Admitted)

    def on_reply(self, tag: str, reply: Any) -> None:
        self.asked += 1
        if isinstance(reply, FlowFabricError):
            self.answer = reply
            return
        answer = admit_answer(reply)
        match answer:
            case Admitted():
                self.obtained += answer.obtained
                self.changes.append((tag, reply[1]))
                self.answer = Admitted(tuple(self.obtained))
            case FlowFabricError():
                self.answer = answer
            case _:
                self.answer = answer
                self.listing.append((tag, reply[1]))
                self.gate = reply[0][1]


class SpreadAdmission:
    def __init__(self, calls: Calls, places: Places) -> None:
        self._calls = calls
        self._places = places

    async def admit(self, items: Sequence[Admission]) -> list[Answered[AdmitAnswer]]:
        done: list[_Pending] = []
        while len(done) < len(items):
            batch = [self._pending(item) for item in items[len(done) :]]
            while by_tag := _next(batch):
                counted = _counted([*done, *batch])
                await asyncio.gather(
                    *(self._ask_at(tag, own, counted) for tag, own in by_tag.items())
                )
            sound = _sound(batch)
            await self._undo(batch, sound)
            done += batch[:sound]
        return [pending.answer for pending in done]

    def _pending(self, item: Admission) -> _Pending:
        stages: list[tuple[str, list[AskLimit]]] = []
        for ask in map(self._places.ask, item.asks):
            if not stages or stages[-1][0] != ask.tag:
                stages.append((ask.tag, []))
            stages[-1][1].append(ask)
        return _Pending(item, stages)

    async def _ask_at(self, tag: str, batch: list[_Pending], counted: list[Any]) -> None:
        packed = [
            pack_admission(pending.item, pending.stages[pending.asked][1]) for pending in batch
        ]
        replies: Sequence[Any]
        try:
            reply = await self._calls.run(
                "admit", key_of(tag), Admitting(packed, counted, restorable=True)
            )
            replies = reply.head
        except FlowFabricError as fault:
            # Only those whose limits cannot be asked are not let through.
            replies = [fault] * len(batch)
        for pending, reply in zip(batch, replies, strict=True):
            pending.on_reply(tag, reply)

    async def _undo(self, batch: list[_Pending], sound: int) -> None:
        """Take back what refused items got, and everything of those that are asked again."""
        undone: dict[str, list[Any]] = {}
        for index in reversed(range(len(batch))):
            pending = batch[index]
            changes = [] if pending.is_in and index < sound else pending.changes
            for tag, some in (*changes, *(pending.listing if index >= sound else ())):
                if some:
                    own = Restoring(pending.item.execution_id, pending.item.holder, some)
                    undone.setdefault(tag, []).append(own)
        await asyncio.gather(*(self._restore(tag, own) for tag, own in undone.items()))

    async def _restore(self, tag: str, own: list[Any]) -> None:
        try:
            await self._calls.run("restore", key_of(tag), own)
        except FlowFabricError:
            # A slot that nobody gives back ends by itself.
            return


def _next(batch: list[_Pending]) -> dict[str, list[_Pending]]:
    """Whom to ask next, by slot. Nobody is asked where one before it has still to be."""
    by_tag: dict[str, list[_Pending]] = {}
    taken: set[str] = set()
    for pending in batch:
        left = [tag for tag, _ in pending.stages[pending.asked :]] if pending.is_in else []
        if left and left[0] not in taken:
            by_tag.setdefault(left.pop(0), []).append(pending)
        taken.update(left)
    return by_tag


def _sound(batch: list[_Pending]) -> int:
    """How many, from the first, were answered as if asked one after the other: up to one whose
    answer depends on what another got before it that is now undone."""
    tainted: set[str] = set()
    for index, pending in enumerate(batch):
        if not tainted.isdisjoint((pending.gate, pending.item.execution_id)):
            return index
        if not pending.is_in and pending.changes:
            tainted.update(one.gate for one in pending.obtained)
            tainted.add(pending.item.execution_id)
    return len(batch)


def _counted(batch: list[_Pending]) -> list[tuple[str, int, int]]:
    """What dry items have counted so far: gate, slots, entries."""
    slots: Counter[str] = Counter()
    entries: Counter[str] = Counter()
    for pending in batch:
        if pending.item.dry and pending.is_in:
            for one in pending.obtained:
                slots[one.gate] += one.slot
                entries[one.gate] += one.entry
    return [(gate, slots[gate], entries[gate]) for gate in slots]
