"""Subscriptions to the durable log: what happened, in order, from any position on."""

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterator
from contextlib import closing
from typing import Final, cast

from flowfabric.backend.base import LOG_TOPIC
from flowfabric.backend.types import EventFilter, EventPage
from flowfabric.core.cursors import from_text, to_text
from flowfabric.core.ids import check_namespace
from flowfabric.core.plan import Family
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.event_types import events_of
from flowfabric.errors import InvalidInput, StreamDisconnected, Unavailable
from flowfabric.operations import streams as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.events import (
    FAMILIES,
    BackpressureEvent,
    Cursor,
    Event,
    EventQuery,
    EventScope,
)
from flowfabric.operations.streams import PRESENT
from flowfabric.operations.types import Page

PAGE: Final = 256
MOST_READ: Final = 1_000
MOST_WAIT_MS: Final = 30_000
# How often a reader looks without a notification: one may be lost, the log is the truth.
SAFETY_NET_S: Final = 3.0

# Word of entries that were missed or cannot be read comes between the events. Neither ends a
# subscription; only a raised `StreamDisconnected` does.
Subscription = AsyncGenerator[Event, None]

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
        cursor: Cursor = "",
    ) -> Subscription:
        """Follow the log. An empty cursor is the position of this very call, `oldest` the first
        entry still kept, any other resumes strictly behind the event that carried it."""
        wanted = self._wanted(families, scope)
        position = await self._position(cursor)
        # A cursor of another store is refused here, not on the first event.
        await self._deps.store.backend.events(position, wanted, 1)
        return self._follow(wanted, position, scope.namespaces)

    @implements(declared.Streams.read_events)
    async def read_events(
        self, asked: EventQuery = PRESENT, *, visible: frozenset[str] | None = None
    ) -> Page[Event]:
        """One page of the log. With nothing on it, wait until something is logged that was asked
        for, or until the time is up."""
        whole(asked.limit, "limit", 1, MOST_READ)
        whole(asked.wait_ms, "wait_ms", 0, MOST_WAIT_MS)
        scope = EventScope(
            namespace=asked.namespace, instance_tag=self._tag(asked.tag), namespaces=visible
        )
        wanted = self._wanted(_families(asked.families), scope)
        position = await self._position(asked.cursor)
        if not asked.wait_ms:
            return await self._page(position, wanted, visible, asked.limit)
        with closing(self._deps.store.backend.notifier().subscribe(LOG_TOPIC)) as subscription:
            loop = asyncio.get_running_loop()
            end = loop.time() + asked.wait_ms / 1_000
            while True:
                page = await self._page(position, wanted, visible, asked.limit)
                left = end - loop.time()
                if page.items or left <= 0:
                    return page
                position = from_text(page.next_cursor)
                await subscription.wait(min(left, SAFETY_NET_S))

    async def wait(self, seconds: float) -> None:
        """Wait until something is logged, or so long; it may be nothing that was asked for."""
        with closing(self._deps.store.backend.notifier().subscribe(LOG_TOPIC)) as subscription:
            await subscription.wait(min(seconds, SAFETY_NET_S))

    async def subscribe_completions(
        self, scope: EventScope = _EVERYTHING, cursor: Cursor = ""
    ) -> Subscription:
        return await self.subscribe(frozenset[Family]({"completion"}), scope, cursor)

    async def subscribe_lease_history(
        self, scope: EventScope = _EVERYTHING, cursor: Cursor = ""
    ) -> Subscription:
        return await self.subscribe(frozenset[Family]({"lease"}), scope, cursor)

    async def subscribe_signal_delivery(
        self, scope: EventScope = _EVERYTHING, cursor: Cursor = ""
    ) -> Subscription:
        return await self.subscribe(frozenset[Family]({"signal"}), scope, cursor)

    async def subscribe_instance_tags(self) -> Subscription:
        """Reserved. To find what has a tag, search for it."""
        raise Unavailable("subscribe_instance_tags: no store offers it; search by tag instead")

    async def _position(self, cursor: Cursor) -> bytes:
        if not isinstance(cursor, str):
            raise InvalidInput("cursor: expected the text of an event, oldest, or nothing")
        if cursor in ("", "oldest"):
            return await self._deps.store.backend.cursor("oldest" if cursor else "now")
        return from_text(cursor)

    async def _page(
        self,
        position: bytes,
        wanted: EventFilter,
        namespaces: frozenset[str] | None,
        limit: int,
    ) -> Page[Event]:
        """The position behind the page takes in what was not shown."""
        page = await self._deps.store.backend.events(position, wanted, limit)
        items = list(_items(page, wanted.families, position, namespaces))
        return Page(items=items, next_cursor=to_text(page.cursor))

    async def _follow(
        self, wanted: EventFilter, position: bytes, namespaces: frozenset[str] | None
    ) -> Subscription:
        # Listening begins with the first iteration: a subscription nobody iterates holds nothing.
        subscription = self._deps.store.backend.notifier().subscribe(LOG_TOPIC)
        try:
            while True:
                subscription.take()
                page = await self._read(position, wanted)
                for item in _items(page, wanted.families, position, namespaces):
                    yield item
                if page.cursor == position:
                    await subscription.wait(SAFETY_NET_S)
                position = page.cursor
        finally:
            subscription.close()

    async def _read(self, position: bytes, wanted: EventFilter) -> EventPage:
        try:
            return await self._deps.store.backend.events(position, wanted, PAGE)
        except Exception as fault:
            told = f"reading the log: {fault}"
            raise StreamDisconnected(told, cursor=to_text(position)) from fault

    def _tag(self, text: str) -> tuple[str, str] | None:
        key, found, value = text.partition("=")
        if text and (not found or key not in self._searchable):
            raise InvalidInput("tag: expected key=value, the key one of the searchable tags")
        return (key, value) if text else None

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


def _families(text: str) -> frozenset[Family]:
    """Names that are not families are refused with all the others."""
    names = {one.strip() for one in text.split(",") if one.strip()}
    return cast(frozenset[Family], frozenset(names or FAMILIES))


def _items(
    page: EventPage,
    wanted: frozenset[Family],
    before: bytes,
    namespaces: frozenset[str] | None,
) -> Iterator[Event]:
    if page.missed:
        reason = "entries before the first one kept were missed"
        yield BackpressureEvent(cursor=to_text(before), reason=reason)
    for stored in page.events:
        if namespaces is None or stored.entry.namespace in namespaces:
            yield from events_of(stored, wanted, before)
        before = stored.cursor
