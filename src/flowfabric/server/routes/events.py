"""The feed of events as Server-Sent Events; its pages are a declared operation."""

from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from flowfabric.errors import FlowFabricError
from flowfabric.operations.events import Event, EventQuery
from flowfabric.operations.streams import Streams
from flowfabric.operations.types import Page
from flowfabric.server.call import Call
from flowfabric.server.decoding import ClientDisconnected
from flowfabric.server.operations import authorize, route_of
from flowfabric.server.replies import (
    HEARTBEAT,
    HEARTBEAT_MS,
    OPENING,
    EventStream,
    Reply,
    event,
    failed,
)
from flowfabric.server.route import Route

_PAGES: Final = route_of(Streams.read_events)


async def read_events(call: Call[None, EventQuery]) -> Reply | EventStream:
    if b"text/event-stream" not in call.headers.get(b"accept", b""):
        return await _PAGES.handler(call)
    await authorize(Streams.read_events, call, {"asked": call.query})
    last = call.headers.get(b"last-event-id", b"").decode("latin-1")
    feed = _Feed(call, last or call.query.cursor)
    return EventStream(feed.lines(await feed.page(0)), call.services.sse)


read_events.__doc__ = _PAGES.summary
EVENTS: Final[Route] = msgspec.structs.replace(_PAGES, handler=read_events)


class _Feed:
    """A reader of events, and its position."""

    def __init__(self, call: Call[Any, EventQuery], cursor: str) -> None:
        self._call = call
        self._cursor = cursor

    async def page(self, wait_ms: int) -> Page[Event]:
        """The next events; refuses a cursor of another store."""
        call = self._call
        asked = msgspec.structs.replace(call.query, cursor=self._cursor, wait_ms=wait_ms)
        read = call.engine.use_case(Streams.read_events)
        page: Page[Event] = await read(asked, visible=call.caller.namespaces)
        return page

    async def lines(self, page: Page[Event]) -> AsyncGenerator[bytes, None]:
        yield OPENING
        async with self._call.cancellable_wait() as wait:
            try:
                while True:
                    for item in page.items:
                        yield event(item.family, item, item.cursor)
                    self._cursor = page.next_cursor
                    page = await wait.run(self.page(HEARTBEAT_MS))
                    if not page.items:
                        yield HEARTBEAT
            except ClientDisconnected:
                return
            except FlowFabricError as fault:
                yield failed(fault)
