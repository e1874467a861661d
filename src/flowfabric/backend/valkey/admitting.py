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
from flowfabric.backend.valkey.limit_answers import admit_answer
from flowfabric.backend.valkey.limit_packing import pack_admission
from flowfabric.backend.valkey.limit_places import Places
from flowfabric.backend.valkey.limit_requests import Admitting, AskLimit, Restoring
from flowfabric.core.limits.asks import Admission, AdmitAnswer, Admitted, Obtained
from flowfabric.errors import FlowFabricError


class _Bid(msgspec.Struct):
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

    def hear(self, tag: str, reply: Any) -> None:
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
        done: list[_Bid] = []
        while len(done) < len(items):
            bids = [self._bid(item) for item in items[len(done) :]]
            while by_tag := _next(bids):
                shown = _shown([*done, *bids])
                await asyncio.gather(
                    *(self._ask_at(tag, own, shown) for tag, own in by_tag.items())
                )
            sound = _sound(bids)
            await self._undo(bids, sound)
            done += bids[:sound]
        return [bid.answer for bid in done]

    def _bid(self, item: Admission) -> _Bid:
        stages: list[tuple[str, list[AskLimit]]] = []
        for ask in map(self._places.ask, item.asks):
            if not stages or stages[-1][0] != ask.tag:
                stages.append((ask.tag, []))
            stages[-1][1].append(ask)
        return _Bid(item, stages)

    async def _ask_at(self, tag: str, bids: list[_Bid], shown: list[Any]) -> None:
        packed = [pack_admission(bid.item, bid.stages[bid.asked][1]) for bid in bids]
        replies: Sequence[Any]
        try:
            reply = await self._calls.run(
                "admit", key_of(tag), Admitting(packed, shown, restorable=True)
            )
            replies = reply.head
        except FlowFabricError as fault:
            # Only those whose limits cannot be asked are not let through.
            replies = [fault] * len(bids)
        for bid, reply in zip(bids, replies, strict=True):
            bid.hear(tag, reply)

    async def _undo(self, bids: list[_Bid], sound: int) -> None:
        """Take back what refused items got, and everything of those that are asked again."""
        undone: dict[str, list[Any]] = {}
        for index in reversed(range(len(bids))):
            bid = bids[index]
            changes = [] if bid.is_in and index < sound else bid.changes
            for tag, some in (*changes, *(bid.listing if index >= sound else ())):
                if some:
                    own = Restoring(bid.item.execution_id, bid.item.holder, some)
                    undone.setdefault(tag, []).append(own)
        await asyncio.gather(*(self._restore(tag, own) for tag, own in undone.items()))

    async def _restore(self, tag: str, own: list[Any]) -> None:
        try:
            await self._calls.run("restore", key_of(tag), own)
        except FlowFabricError:
            # A slot that nobody gives back ends by itself.
            return


def _next(bids: list[_Bid]) -> dict[str, list[_Bid]]:
    """Whom to ask next, by slot. Nobody is asked where one before it has still to be."""
    by_tag: dict[str, list[_Bid]] = {}
    taken: set[str] = set()
    for bid in bids:
        left = [tag for tag, _ in bid.stages[bid.asked :]] if bid.is_in else []
        if left and left[0] not in taken:
            by_tag.setdefault(left.pop(0), []).append(bid)
        taken.update(left)
    return by_tag


def _sound(bids: list[_Bid]) -> int:
    """How many bids, from the first, were answered as if asked one after the other: up to one whose
    answer depends on what another got before it that is now undone."""
    tainted: set[str] = set()
    for index, bid in enumerate(bids):
        if not tainted.isdisjoint((bid.gate, bid.item.execution_id)):
            return index
        if not bid.is_in and bid.changes:
            tainted.update(one.gate for one in bid.obtained)
            tainted.add(bid.item.execution_id)
    return len(bids)


def _shown(bids: list[_Bid]) -> list[tuple[str, int, int]]:
    """What dry items were shown so far: gate, slots, entries."""
    slots: Counter[str] = Counter()
    entries: Counter[str] = Counter()
    for bid in bids:
        if bid.item.dry and bid.is_in:
            for one in bid.obtained:
                slots[one.gate] += one.slot
                entries[one.gate] += one.entry
    return [(gate, slots[gate], entries[gate]) for gate in slots]
