"""Subscriptions to the durable log: what happened, in order, from any position on."""

from collections.abc import AsyncGenerator, Collection, Iterator
from typing import Final, Literal

import msgspec

from flowfabric.backend.base import LOG_BELL
from flowfabric.backend.types import EventFilter, EventPage
from flowfabric.core.ids import check_namespace
from flowfabric.core.plan import Family
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.event_types import FAMILIES, Event, events_of
from flowfabric.errors import (
    Corruption,
    InvalidInput,
    StreamBackpressure,
    StreamDisconnected,
    Unavailable,
)

PAGE: Final = 256
MOST_READ: Final = 1_000
# How often a reader looks although no bell rang: a bell may be lost, the log is the truth.
SAFETY_NET_S: Final = 3.0

# What a subscription yields: events, and between them word of entries that were missed or that
# cannot be read. Neither ends it; only a raised `StreamDisconnected` does.
Item = Event | StreamBackpressure | Corruption
Subscription = AsyncGenerator[Item, None]
Cursor = bytes | Literal["oldest"]


class EventScope(msgspec.Struct, frozen=True, kw_only=True):
    """Whose events to show; what is unset does not matter, and all that is set must hold."""

    namespace: str = ""
    instance_tag: tuple[str, str] | None = None
    partitions: frozenset[int] = frozenset()
    # Of several namespaces these; None does not matter.
    namespaces: frozenset[str] | None = None


class EventsPage(msgspec.Struct, frozen=True):
    """Items in order, and the position behind them, those that were not shown included."""

    items: tuple[Item, ...]
    next_cursor: bytes


_EVERYTHING: Final = EventScope()


class Events:
    """`searchable` are the tag keys this deployment keeps with its log entries."""

    def __init__(self, deps: Deps, searchable: frozenset[str] = frozenset()) -> None:
        self._deps = deps
        self._searchable = searchable

    async def subscribe(
        self,
        families: Collection[Family],
        scope: EventScope = _EVERYTHING,
        cursor: Cursor = b"",
    ) -> Subscription:
        """Follow the log. An empty cursor is the position of this very call, `oldest` the first
        entry still kept, any other resumes strictly behind the event that carried it."""
        wanted = self._wanted(families, scope)
        return self._follow(wanted, await self._position(cursor, wanted), scope.namespaces)

    async def read(
        self,
        families: Collection[Family],
        scope: EventScope = _EVERYTHING,
        cursor: Cursor = b"",
        limit: int = PAGE,
    ) -> EventsPage:
        """One page of the log, without waiting. An empty cursor answers the present position."""
        wanted = self._wanted(families, scope)
        whole(limit, "limit", 1, MOST_READ)
        position = await self._position(cursor, wanted)
        page = await self._deps.store.backend.events(position, wanted, limit)
        items = tuple(_items(page, wanted.families, position, scope.namespaces))
        return EventsPage(items, page.cursor)

    async def wait(self, seconds: float) -> None:
        """Wait until something is logged, or so long; it may be nothing that was asked for."""
        listening = self._deps.store.backend.bells().listen(LOG_BELL)
        try:
            await listening.wait(min(seconds, SAFETY_NET_S))
        finally:
            listening.close()

    async def subscribe_completions(
        self, scope: EventScope = _EVERYTHING, cursor: Cursor = b""
    ) -> Subscription:
        return await self.subscribe(frozenset[Family]({"completion"}), scope, cursor)

    async def subscribe_lease_history(
        self, scope: EventScope = _EVERYTHING, cursor: Cursor = b""
    ) -> Subscription:
        return await self.subscribe(frozenset[Family]({"lease"}), scope, cursor)

    async def subscribe_signal_delivery(
        self, scope: EventScope = _EVERYTHING, cursor: Cursor = b""
    ) -> Subscription:
        return await self.subscribe(frozenset[Family]({"signal"}), scope, cursor)

    async def subscribe_instance_tags(self) -> Subscription:
        """Reserved. To find what bears a tag, search for it."""
        raise Unavailable("subscribe_instance_tags: no store offers it; search by tag instead")

    async def _position(self, cursor: Cursor, wanted: EventFilter) -> bytes:
        """Where to begin. A cursor of another store is refused here, not on the first event."""
        backend = self._deps.store.backend
        if cursor == "oldest":
            return await backend.cursor("oldest")
        if not isinstance(cursor, bytes):
            raise InvalidInput("cursor: expected bytes, or oldest")
        if not cursor:
            return await backend.cursor("now")
        await backend.events(cursor, wanted, 1)
        return cursor

    async def _follow(
        self, wanted: EventFilter, position: bytes, namespaces: frozenset[str] | None
    ) -> Subscription:
        # Listening begins with the first iteration: a subscription nobody iterates holds nothing.
        listening = self._deps.store.backend.bells().listen(LOG_BELL)
        try:
            while True:
                listening.take()
                page = await self._read(position, wanted)
                for item in _items(page, wanted.families, position, namespaces):
                    yield item
                if page.cursor == position:
                    await listening.wait(SAFETY_NET_S)
                position = page.cursor
        finally:
            listening.close()

    async def _read(self, position: bytes, wanted: EventFilter) -> EventPage:
        try:
            return await self._deps.store.backend.events(position, wanted, PAGE)
        except Exception as fault:
            raise StreamDisconnected(f"reading the log: {fault}", cursor=position) from fault

    def _wanted(self, families: Collection[Family], scope: EventScope) -> EventFilter:
        if not families or not set(families) <= set(FAMILIES):
            raise InvalidInput(f"families: expected some of {', '.join(FAMILIES)}")
        if scope.namespace:
            check_namespace(scope.namespace)
        if scope.instance_tag is not None and scope.instance_tag[0] not in self._searchable:
            raise InvalidInput("instance_tag: the key is not among the searchable tags")
        for partition in scope.partitions:
            whole(partition, "partitions", 0, self._deps.counts.flow - 1)
        return EventFilter(
            families=frozenset(families),
            namespace=scope.namespace,
            tag=scope.instance_tag,
            partitions=scope.partitions,
        )


def _items(
    page: EventPage,
    wanted: frozenset[Family],
    before: bytes,
    namespaces: frozenset[str] | None,
) -> Iterator[Item]:
    if page.missed:
        yield StreamBackpressure("entries before the first one kept were missed", cursor=before)
    for stored in page.events:
        if namespaces is None or stored.entry.namespace in namespaces:
            yield from events_of(stored, wanted, before)
        before = stored.cursor
