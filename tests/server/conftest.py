"""A server per store, reached without a socket."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import msgspec
import pytest

from flowfabric.app import backend_of
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.tokens import Secret
from flowfabric.server import booted
from tests.clock import VirtualClock
from tests.server.driving import Served
from tests.server.stores import SERVED
from tests.stores import url_of

Serve = Callable[..., Awaitable[Served]]
BASE = "http://127.0.0.1:9090"


@pytest.fixture(params=SERVED)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    store = parse_store_url(url_of(request.param, tmp_path))
    return Settings(
        store=store, searchable_tags=frozenset({"app.team"}), waitpoint_secret=Secret("5e" * 32)
    )


@pytest.fixture
async def serve(settings: Settings) -> AsyncIterator[Serve]:
    """Serve with changed settings; everything is closed with the test."""
    async with AsyncExitStack() as stack:

        async def start(clock: VirtualClock | None = None, **changes: object) -> Served:
            chosen = msgspec.structs.replace(settings, **changes)
            backend = backend_of(chosen, clock) if clock is not None else None
            application = await stack.enter_async_context(booted(chosen, backend))
            transport = httpx.ASGITransport(application)
            client = httpx.AsyncClient(transport=transport, base_url=BASE, timeout=60)
            return Served(application, await stack.enter_async_context(client))

        yield start


@pytest.fixture
async def served(serve: Serve) -> Served:
    return await serve()
