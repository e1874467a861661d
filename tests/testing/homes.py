"""A kit in every home: on each store, and over HTTP, all under a clock by hand."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec

from flowfabric.app import backend_of, close_engine, open_engine
from flowfabric.backend.types import Filter
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.record import due_at_of
from flowfabric.core.tokens import Secret
from flowfabric.fabric.connection import connect_http, connection_on
from flowfabric.server import booted
from flowfabric.server.boot import bound_socket
from flowfabric.server.listener import Listener
from flowfabric.testing import Kit, VirtualClock
from flowfabric.testing.fabric import opened
from tests.rotation import on_stores
from tests.serving import TOKEN, tokened
from tests.stores import url_of

HOMES: Final = on_stores(["sqlite", "http"], ["memory", "postgres", "valkey", "valkey-cluster"])
_TIMED: Final = ("waiting", "delayed", "blocked", "active", "lost", "suspended")
_LOOK_S: Final = 0.001
_SECRET: Final = Secret("5e" * 32)


class SteppingClock(VirtualClock):
    """Finds the next instant without moving on to look: here workers see the clock meanwhile."""

    async def _due(self, end: int, *, later: bool) -> list[int]:
        (engine,) = self._driven
        found: list[int] = []
        for state in _TIMED:
            page = await engine.reads.search(Filter(state=state), "created", "")
            found += [due_at_of(record) for record in page.records]
        return [one for one in found if 0 < one <= end and (one > self() or not later)]


@asynccontextmanager
async def kit_at(home: str, directory: Path) -> AsyncIterator[Kit]:
    if home == "http":
        async with _over_http() as kit:
            yield kit
        return
    clock = SteppingClock()
    store = parse_store_url(url_of(home, directory))
    engine = await open_engine(Settings(store=store, waitpoint_secret=_SECRET), clock)
    try:
        kit = Kit()
        async with opened(kit, engine, clock, connection_on(engine)):
            _wait_for_claims(kit)
            yield kit
    finally:
        await close_engine(engine)


@asynccontextmanager
async def _over_http() -> AsyncIterator[Kit]:
    """The kit has an address and a token; the server sweeps only when the clock is moved."""
    clock = SteppingClock()
    settings = msgspec.structs.replace(tokened(), timer_sweep_interval_ms=3_600_000)
    async with booted(settings, backend_of(settings, clock)) as application:
        listening = bound_socket(settings)
        listener = Listener(application)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        await listener.start(listening)
        connection = await connect_http(url, Secret(TOKEN))
        try:
            kit = Kit()
            async with opened(kit, application.services.engine, clock, connection):
                _wait_for_claims(kit)
                yield kit
        finally:
            await connection.close()
            application.services.drain.begin()
            await listener.stop(5)


def _wait_for_claims(kit: Kit) -> None:
    """Notifications take a while here, and the clock must not be moved meanwhile."""

    async def has_unclaimed() -> bool:
        for state in ("waiting", "lost"):
            page = await kit.engine.reads.search(Filter(state=state), "created", "")
            if page.records:
                await asyncio.sleep(_LOOK_S)
                return True
        return False

    kit.has_unclaimed = has_unclaimed  # type: ignore[method-assign]
