"""A store on a real server, with words to look behind it."""

from collections.abc import AsyncIterator

import pytest

from flowfabric.app import backend_of
from flowfabric.backend.base import Backend
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.tokens import Secret
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import engine_on
from tests.clock import VirtualClock
from tests.conformance.driver import Driver
from tests.stores import SEARCHABLE
from tests.valkey_server import ValkeyServer, shared_server


@pytest.fixture
def server() -> ValkeyServer:
    server = shared_server()
    server.clean()
    return server


@pytest.fixture
async def backend(server: ValkeyServer, clock: VirtualClock) -> AsyncIterator[Backend]:
    store = StoreUrl("valkey", host="127.0.0.1", port=server.port)
    opened = backend_of(Settings(store=store, searchable_tags=SEARCHABLE), clock)
    await opened.prepare()
    yield opened
    await opened.close()


@pytest.fixture
async def driver(backend: Backend, clock: VirtualClock) -> AsyncIterator[Driver]:
    engine = engine_on(backend, searchable_tags=SEARCHABLE)
    await engine.keys.boot(Secret("5e" * 32))
    yield Driver(engine, clock, TimerSweep(engine))
    await engine.close()
