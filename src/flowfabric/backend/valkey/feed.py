"""Mechanism `events`: the log."""

from typing import Literal

from flowfabric.backend.types import EventFilter, EventPage
from flowfabric.backend.valkey.calls import Calls
from flowfabric.errors import Unavailable


class FeedMechanism:
    _calls: Calls

    async def events(self, cursor: bytes, wanted: EventFilter, limit: int) -> EventPage:
        raise Unavailable("events")

    async def cursor(self, position: Literal["now", "oldest"]) -> bytes:
        raise Unavailable("cursor")
