"""Every home the SDK's programs run on, unchanged. A further one joins by one entry in EVERY."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from flowfabric import FlowFabric
from flowfabric.backend.base import Backend
from flowfabric.config import Settings
from flowfabric.core.tokens import Secret
from tests.serving import TOKEN, serving
from tests.valkey_server import shared_cluster, shared_server

SETTINGS = Settings(timer_sweep_interval_ms=100, waitpoint_secret=Secret("5e" * 32))


@asynccontextmanager
async def _embedded(url: str) -> AsyncIterator[FlowFabric]:
    """A fabric on a store, whose views must agree with its records in the end."""
    async with FlowFabric(url, settings=SETTINGS) as fabric:
        yield fabric
        engine = (await fabric.open()).engine
        assert engine is not None
        backend: Backend = engine.deps.store.backend
        assert await backend.verify() == []


def _memory(_: Path) -> AbstractAsyncContextManager[FlowFabric]:
    return _embedded("memory://")


def _sqlite(directory: Path) -> AbstractAsyncContextManager[FlowFabric]:
    return _embedded(f"sqlite:///{directory / 'sdk.db'}")


def _valkey(_: Path) -> AbstractAsyncContextManager[FlowFabric]:
    server = shared_server()
    server.clean()
    return _embedded(f"valkey://127.0.0.1:{server.port}")


def _valkey_cluster(_: Path) -> AbstractAsyncContextManager[FlowFabric]:
    cluster = shared_cluster()
    cluster.clean()
    return _embedded(f"valkey://127.0.0.1:{cluster.primaries[0].port}?cluster=true")


@asynccontextmanager
async def _http(_: Path) -> AsyncIterator[FlowFabric]:
    """A fabric that knows nothing but the address and token of a server."""
    async with (
        serving(SETTINGS) as server,
        FlowFabric(server.url, token=TOKEN, settings=SETTINGS) as fabric,
    ):
        yield fabric


Open = Callable[[Path], AbstractAsyncContextManager[FlowFabric]]
EVERY: dict[str, Open] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "valkey": _valkey,
    "valkey-cluster": _valkey_cluster,
    "http": _http,
}
_CHOSEN = (*os.environ.get("FF_TEST_STORES", "memory,sqlite").split(","), "http")
BACKENDS: dict[str, Open] = {name: EVERY[name] for name in _CHOSEN}
