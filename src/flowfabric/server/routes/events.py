"""The feeds of what happened, as pages and as Server-Sent Events."""

import asyncio
import binascii
from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncGenerator
from typing import Any, Final, cast

from flowfabric.core.plan import Family
from flowfabric.engine.event_types import FAMILIES, Other
from flowfabric.engine.events import Cursor, EventScope, EventsPage, Item
from flowfabric.errors import (
    Corruption,
    FlowFabricError,
    InvalidParameter,
    ResourceExhausted,
    StreamBackpressure,
)
from flowfabric.server.call import Call
from flowfabric.server.reading import ClientGone
from flowfabric.server.replies import EventStream, Reply, ok
from flowfabric.server.route import READ, Routes
from flowfabric.server.sse import BEAT, BEAT_MS, OPENING, event, failed
from flowfabric.wire import streams as wire

routes: Final = Routes()


@routes.add(
    "GET /v1/events",
    READ,
    {200: wire.Events},
    ResourceExhausted,
    timeout_s=None,
)
async def read_events(call: Call[None, wire.EventsQuery]) -> Reply | EventStream:
    """What happened behind a cursor; with `Accept: text/event-stream` as it happens."""
    feed = _Feed(call)
    if b"text/event-stream" in call.headers.get(b"accept", b""):
        await feed.begin(call.headers.get(b"last-event-id", b"").decode("latin-1"))
        return EventStream(feed.lines(), call.services.sse)
    await feed.begin("")
    return ok(await feed.page())


class _Feed:
    """A reader's families, scope and position."""

    def __init__(self, call: Call[None, wire.EventsQuery]) -> None:
        self._call = call
        self._families = _families(call.query.families)
        self._scope = _scope(call)
        self._position: Cursor = b""

    async def begin(self, last: str) -> None:
        """From the last event a client saw, or from where it asks to begin. A cursor that is not
        one is refused here."""
        self._position = _cursor(last or self._call.query.cursor)
        if not self._position:
            page = await self._read(1)
            self._position = page.next_cursor

    async def page(self) -> wire.Events:
        query = self._call.query
        page = await self._read(query.limit)
        if not page.items and query.wait_ms:
            async with self._call.leaving() as leaving:
                page = await leaving.wait_for(self._awaited(query.wait_ms / 1_000))
        events = [_shown(item) for item in page.items]
        return wire.Events(events=events, next_cursor=_text(page.next_cursor))

    async def lines(self) -> AsyncGenerator[bytes, None]:
        yield OPENING
        async with self._call.leaving() as leaving:
            try:
                while True:
                    page = await leaving.wait_for(self._awaited(BEAT_MS / 1_000))
                    for item in page.items:
                        shown = _shown(item)
                        yield event(shown.family, shown, shown.cursor)
                    if not page.items:
                        yield BEAT
                    self._position = page.next_cursor
            except ClientGone:
                return
            except FlowFabricError as fault:
                yield failed(fault)

    async def _awaited(self, seconds: float) -> EventsPage:
        """The next page with something on it, or an empty one when the time is up."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            page = await self._read(self._call.query.limit)
            left = end - loop.time()
            if page.items or left <= 0:
                return page
            self._position = page.next_cursor
            await self._call.engine.events.wait(left)

    async def _read(self, limit: int) -> EventsPage:
        return await self._call.engine.events.read(
            self._families, self._scope, self._position, limit
        )


def _families(text: str) -> frozenset[Family]:
    names = {one.strip() for one in text.split(",") if one.strip()} or set(FAMILIES)
    if not names <= set(FAMILIES):
        raise InvalidParameter(f"families: expected some of {', '.join(FAMILIES)}")
    return cast(frozenset[Family], frozenset(names))


def _scope(call: Call[None, wire.EventsQuery]) -> EventScope:
    query = call.query
    if query.namespace:
        call.caller.need_namespace(query.namespace)
    tag: tuple[str, str] | None = None
    if query.tag:
        key, found, value = query.tag.partition("=")
        if not found or key not in call.services.settings.searchable_tags:
            raise InvalidParameter("tag: expected key=value, the key one of the searchable tags")
        tag = (key, value)
    return EventScope(
        namespace=query.namespace, instance_tag=tag, namespaces=call.caller.namespaces
    )


def _cursor(text: str) -> Cursor:
    if text == "oldest":
        return "oldest"
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        return b64decode(padded, altchars=b"-_", validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise InvalidParameter("cursor: not base64url") from None


def _text(cursor: bytes) -> str:
    return urlsafe_b64encode(cursor).rstrip(b"=").decode()


def _shown(item: Item) -> wire.Event:
    if isinstance(item, StreamBackpressure | Corruption):
        cursor = item.details.get("cursor", b"")
        assert isinstance(cursor, bytes)
        return wire.Event(cursor=_text(cursor), family="backpressure", reason=item.detail)
    members: dict[str, Any] = {name: getattr(item, name) for name in item.__struct_fields__}
    for name, value in members.items():
        if isinstance(value, Other):
            members[name] = value.text
    members["cursor"] = _text(item.cursor)
    return wire.Event(family=cast(Family, item.__struct_config__.tag), **members)
