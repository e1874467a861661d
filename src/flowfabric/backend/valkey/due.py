"""Mechanism `due`: what has its time come, over all partitions."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from flowfabric.backend.reference.reads import due_documents
from flowfabric.backend.types import DuePage
from flowfabric.backend.valkey.calls import Reply
from flowfabric.backend.valkey.config import ConfigMechanism
from flowfabric.backend.valkey.flow_store import FlowMechanism
from flowfabric.backend.valkey.keys import CONFIG
from flowfabric.backend.valkey.reads import ReadMechanism
from flowfabric.backend.valkey.requests import ListView
from flowfabric.backend.valkey.search import Spot, merged, view_in
from flowfabric.core.documents import Document
from flowfabric.core.ids import partition_of
from flowfabric.core.record import Record

# The views of what is due. Documents of the configuration are numbered behind them.
_VIEWS: Final = ("timers", "flow_timers", "budget_timers")
_RECORDS, _FLOWS, _BUDGETS, _CONFIG = range(4)
# A search for what is due in some partitions looks at so many of all in one call.
_LOOKS: Final = 1_000

Moment = tuple[int, str]


class Moments(NamedTuple):
    """Places of what is due, by kind, and where to go on behind them."""

    now: int
    places: list[list[Spot]]
    next_after: Moment | None


def due_request(limit: int, after: Moment | None, partitions: frozenset[int]) -> ListView:
    score, behind = after or (False, "")
    return ListView(
        views=_VIEWS,
        newest=False,
        after_score=score,
        after_id=behind,
        limit=max(limit, _LOOKS) if partitions else limit,
        is_due=True,
        tags=(),
    )


def moments_in(replies: Sequence[Reply], limit: int, is_wanted: Callable[[Spot], bool]) -> Moments:
    """The first `limit` of each kind over all replies; what is left out comes behind
    `next_after`."""
    views = [view_in(answer) for reply in replies for answer in reply.head[1]]
    ends: list[Spot] = []
    places: list[list[Spot]] = []
    for kind in range(len(_VIEWS) + 1):
        own = [view for view in views if view.number == kind]
        seen = merged(own)
        wanted = [spot for spot in seen if is_wanted(spot)]
        places.append(wanted[:limit])
        if len(wanted) > limit > 0:
            ends.append(wanted[limit - 1])
        elif any(view.has_more for view in own):
            ends.append(seen[-1])
    # Clocks of servers differ a little; by the earliest nothing is acted on too soon.
    now = min(reply.now for reply in replies)
    return Moments(now, places, min(ends)[:2] if ends else None)


class DueMechanism(FlowMechanism, ReadMechanism, ConfigMechanism):
    async def due(
        self, limit: int, after: Moment | None = None, partitions: frozenset[int] = frozenset()
    ) -> DuePage:
        reply = await self._calls.run("due", CONFIG, due_request(limit, after, partitions))
        return await self._due_page([reply], limit, partitions)

    async def _due_page(
        self, replies: Sequence[Reply], limit: int, partitions: frozenset[int]
    ) -> DuePage:
        def is_wanted(spot: Spot) -> bool:
            """Budgets and documents of the configuration lie in none of the partitions."""
            if not partitions or spot.view in (_BUDGETS, _CONFIG):
                return True
            flow = spot.view == _FLOWS
            own = self._calls.counts.of_flow(spot.id) if flow else partition_of(spot.id)
            return own in partitions

        found = moments_in(replies, limit, is_wanted)
        names = [[spot.id for spot in spots] for spots in found.places]
        records, flows, config = await asyncio.gather(
            self.records(names[_RECORDS]),
            self.flows(names[_FLOWS]),
            self.config_get(names[_CONFIG]),
        )
        # What has changed since it was found is answered when its new time has come.
        due = {spot[:2] for spots in found.places for spot in spots}
        unchanged = [one for one in records if one and (one.due_at, one.execution_id) in due]
        return DuePage(
            tuple(unchanged),
            tuple(one for one in flows if one and (one.due_at, one.flow_id) in due),
            found.now,
            found.next_after,
            await self._due_documents(unchanged, found.now),
            tuple((spot.score, spot.id) for spot in found.places[_BUDGETS]),
            tuple(one for one in config if one and (one.due_at, one.name) in due),
        )

    async def _due_documents(
        self, records: Sequence[Record], now: int
    ) -> dict[str, dict[str, Document]]:
        """What decisions about due records look at besides them, by execution."""
        named = {one.execution_id: due_documents(one, now) for one in records}
        ids = [own for own, names in named.items() if names]
        seen = await self.read(ids, frozenset(), named)
        return {one.record.execution_id: one.documents for one in seen if one and one.documents}
