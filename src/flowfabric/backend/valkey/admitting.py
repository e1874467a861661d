"""Admission where the limits of one execution lie in several slots of a cluster.

Limits are asked in their order, one call per slot, for a whole batch at once. What an execution got
before a later limit refused it is undone. Whoever was refused meanwhile because of that is asked
again, so that the answers are those of asking one execution after the other.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from flowfabric.backend.base import Answered
from flowfabric.backend.valkey.calls import Calls
from flowfabric.backend.valkey.limit_answers import admit_answer, fault_of
from flowfabric.backend.valkey.limit_packing import Asked, pack_admission
from flowfabric.backend.valkey.limit_places import Places, key_at
from flowfabric.core.limits.asks import Admission, AdmitAnswer, Admitted, Obtained
from flowfabric.errors import FlowFabricError

_NOTHING: Final[dict[str, int]] = {}


class _Bid(msgspec.Struct):
    """One item on its way through the slots of its limits."""

    item: Admission
    # Per slot the limits asked there.
    stages: list[tuple[str, list[Asked]]]
    answer: Answered[AdmitAnswer] = Admitted()
    obtained: list[Obtained] = msgspec.field(default_factory=list)
    # What is to be undone when it is refused, and what its refusal itself changed.
    changes: list[tuple[str, Any]] = msgspec.field(default_factory=list)
    listing: list[tuple[str, Any]] = msgspec.field(default_factory=list)
    # The gate that refused it.
    gate: str = ""

    @property
    def is_in(self) -> bool:
        return isinstance(self.answer, Admitted)

    def hear(self, tag: str, reply: Any) -> None:
        if isinstance(reply, FlowFabricError):
            self.answer = reply
            return
        answer, changes = (reply, []) if reply[0] == "bug" else reply
        heard = fault_of(answer, _NOTHING) or admit_answer(answer)
        if isinstance(heard, Admitted):
            self.obtained += heard.obtained
            self.changes.append((tag, changes))
            self.answer = Admitted(tuple(self.obtained))
            return
        self.answer = heard
        self.listing.append((tag, changes))
        if answer[0] in ("rate", "full"):
            self.gate = answer[1]


class SpreadAdmission:
    def __init__(self, calls: Calls, places: Places) -> None:
        self._calls = calls
        self._places = places

    async def admit(self, items: Sequence[Admission]) -> list[Answered[AdmitAnswer]]:
        answers: list[Answered[AdmitAnswer]] = []
        # What dry items were shown so far, by gate: slots and entries.
        promised: dict[str, Counter[str]] = {}
        while len(answers) < len(items):
            bids = [self._bid(item) for item in items[len(answers) :]]
            await self._ask(bids, promised)
            sound = _sound(bids)
            await self._undo(bids, sound)
            for bid in bids[:sound]:
                answers.append(bid.answer)
                if bid.item.dry and bid.is_in:
                    _promise(promised, bid.obtained)
        return answers

    def _bid(self, item: Admission) -> _Bid:
        stages: list[tuple[str, list[Asked]]] = []
        for ask in map(self._places.ask, item.asks):
            if not stages or stages[-1][0] != ask[0]:
                stages.append((ask[0], []))
            stages[-1][1].append(ask)
        return _Bid(item, stages)

    async def _ask(self, bids: list[_Bid], promised: dict[str, Counter[str]]) -> None:
        seeds = [(gate, some["slot"], some["entry"]) for gate, some in promised.items()]
        for stage in range(max(len(bid.stages) for bid in bids)):
            by_tag: dict[str, list[_Bid]] = {}
            for bid in bids:
                if bid.is_in and stage < len(bid.stages):
                    by_tag.setdefault(bid.stages[stage][0], []).append(bid)
            await asyncio.gather(
                *(self._ask_at(tag, own, stage, seeds) for tag, own in by_tag.items())
            )

    async def _ask_at(self, tag: str, bids: list[_Bid], stage: int, seeds: list[Any]) -> None:
        packed = [pack_admission(bid.item, bid.stages[stage][1]) for bid in bids]
        replies: Sequence[Any]
        try:
            reply = await self._calls.run("admit", key_at(tag), (packed, seeds, True))
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
                    own = (bid.item.execution_id, bid.item.holder, some)
                    undone.setdefault(tag, []).append(own)
        await asyncio.gather(*(self._restore(tag, own) for tag, own in undone.items()))

    async def _restore(self, tag: str, own: list[Any]) -> None:
        try:
            await self._calls.run("restore", key_at(tag), own)
        except FlowFabricError:
            # A slot that nobody gives back ends by itself.
            return


def _sound(bids: list[_Bid]) -> int:
    """How many bids, from the first, were answered as if asked one after the other: up to one that
    was refused at a gate where somebody before it stood for nothing."""
    tainted: set[str] = set()
    for index, bid in enumerate(bids):
        if bid.gate in tainted:
            return index
        if not bid.is_in:
            tainted.update(one.gate for one in bid.obtained)
    return len(bids)


def _promise(promised: dict[str, Counter[str]], obtained: Iterable[Obtained]) -> None:
    for one in obtained:
        promised.setdefault(one.gate, Counter()).update(slot=one.slot, entry=one.entry)
