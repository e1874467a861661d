"""The feed of a server, followed page by page; a connection that is cut is made anew."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Collection
from typing import Final

from msgspec.structs import replace

from flowfabric.client.ends import may_recover
from flowfabric.client.operations import http_transport
from flowfabric.client.rest import BACKOFF, Rest
from flowfabric.core.plan import Family
from flowfabric.errors import FlowFabricError, InvalidInput, StreamDisconnected
from flowfabric.operations.events import Cursor, Event, EventQuery, EventScope
from flowfabric.operations.nouns import Calls
from flowfabric.operations.types import Page

_log = logging.getLogger("flowfabric.client")

_WAIT_MS: Final = 25_000
_PAGE: Final = 256


class Feed:
    """A reader of some families and its position."""

    def __init__(self, rest: Rest, families: Collection[Family], scope: EventScope) -> None:
        if scope.partitions or scope.namespaces is not None:
            raise InvalidInput("scope: over HTTP by namespace and one tag only")
        self._rest = rest
        self._calls = Calls(http_transport(rest))
        tag = scope.instance_tag
        self._asked = EventQuery(
            families=",".join(sorted(families)),
            namespace=scope.namespace,
            tag=f"{tag[0]}={tag[1]}" if tag else "",
            limit=_PAGE,
        )

    async def begin(self, cursor: Cursor) -> AsyncGenerator[Event, None]:
        """Begin at the cursor, or at the position of this very call; a bad one is refused here."""
        return self._follow(await self._read(cursor, 0))

    async def _follow(self, page: Page[Event]) -> AsyncGenerator[Event, None]:
        failures = 0
        while True:
            for item in page.items:
                yield item
            try:
                page = await self._read(page.next_cursor, _WAIT_MS)
                failures = 0
            except FlowFabricError as fault:
                position = page.next_cursor
                if not may_recover(fault, self._rest):
                    message = f"reading the log: {fault}"
                    raise StreamDisconnected(message, cursor=position) from fault
                page = Page(items=[], next_cursor=position)
                failures += 1
                _log.warning("following the log goes on after: %s", fault)
                await asyncio.sleep(BACKOFF.pause_s(failures, random.random()))

    async def _read(self, cursor: Cursor, wait_ms: int) -> Page[Event]:
        return await self._calls.read_events(replace(self._asked, cursor=cursor, wait_ms=wait_ms))
