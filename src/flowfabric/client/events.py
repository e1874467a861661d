"""The feeds of a server, followed page by page; a connection that is cut is made anew."""

import asyncio
import logging
import random
from collections.abc import Collection, Mapping
from typing import Any, Final, get_args

from flowfabric.client.ends import may_pass
from flowfabric.client.questions import waiting
from flowfabric.client.rest import BACKOFF, Rest
from flowfabric.core.cursors import from_text, to_text
from flowfabric.core.plan import Family
from flowfabric.engine.event_types import (
    CompletionEvent,
    Effect,
    Event,
    FlowEvent,
    LeaseEvent,
    LeaseKind,
    OperatorEvent,
    Other,
    Outcome,
    SignalEvent,
)
from flowfabric.engine.events import Cursor, EventScope, Item, Subscription
from flowfabric.errors import (
    FlowFabricError,
    InvalidInput,
    StreamBackpressure,
    StreamDisconnected,
)
from flowfabric.wire import streams as wire

_log = logging.getLogger("flowfabric.client")

_WAIT_MS: Final = 25_000
_PAGE: Final = 256
_TYPES: Final[Mapping[str, type[Event]]] = {
    "completion": CompletionEvent,
    "lease": LeaseEvent,
    "signal": SignalEvent,
    "operator": OperatorEvent,
    "flow": FlowEvent,
}
# Members whose words may be ones this release does not know.
_WORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "outcome": get_args(Outcome),
    "kind": get_args(LeaseKind),
    "effect": get_args(Effect),
}


class Feed:
    """A reader of some families and its position."""

    def __init__(self, rest: Rest, families: Collection[Family], scope: EventScope) -> None:
        if scope.partitions or scope.namespaces is not None:
            raise InvalidInput("scope: over HTTP by namespace and one tag only")
        self._rest = rest
        tag = scope.instance_tag
        self._query = {
            "families": ",".join(sorted(families)),
            "namespace": scope.namespace,
            "tag": f"{tag[0]}={tag[1]}" if tag else "",
            "limit": _PAGE,
        }

    async def begin(self, cursor: Cursor) -> Subscription:
        """Begin at the cursor, or at the position of this very call; a bad one is refused here."""
        return self._follow(await self._read(cursor_text(cursor), 0))

    async def _follow(self, page: wire.Events) -> Subscription:
        failures = 0
        while True:
            for shown in page.events:
                yield item_of(shown)
            try:
                page = await self._read(page.next_cursor, _WAIT_MS)
                failures = 0
            except FlowFabricError as fault:
                position = page.next_cursor
                if not may_pass(fault, self._rest):
                    told = f"reading the log: {fault}"
                    raise StreamDisconnected(told, cursor=from_text(position)) from fault
                page = wire.Events(events=[], next_cursor=position)
                failures += 1
                _log.warning("following the log goes on after: %s", fault)
                await asyncio.sleep(BACKOFF.pause_s(failures, random.random()))

    async def _read(self, cursor: str, wait_ms: int) -> wire.Events:
        question = waiting("/v1/events", "wait_ms", wait_ms, **self._query, cursor=cursor)
        return await self._rest.ask(question, wire.Events)


def item_of(shown: wire.Event) -> Item:
    cursor = from_text(shown.cursor)
    kind = _TYPES.get(shown.family)
    if kind is None:
        return StreamBackpressure(shown.reason or "", cursor=cursor)
    members: dict[str, Any] = {
        name: value
        for name in kind.__struct_fields__
        if (value := getattr(shown, name)) is not None
    }
    for name, words in _WORDS.items():
        if name in members and members[name] not in words:
            members[name] = Other(members[name])
    return kind(**{**members, "cursor": cursor})


def cursor_text(cursor: Cursor) -> str:
    if isinstance(cursor, bytes):
        return to_text(cursor)
    if cursor != "oldest":
        raise InvalidInput("cursor: expected bytes, or oldest")
    return cursor
