"""Every home the SDK's programs run on, unchanged: each store, and a server reached over HTTP."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from flowfabric import FlowFabric
from flowfabric.backend.base import Backend
from flowfabric.config import Settings
from flowfabric.core.tokens import Secret
from tests.rotation import on_stores
from tests.serving import TOKEN, serving
from tests.stores import STORES, url_of

SETTINGS = Settings(timer_sweep_interval_ms=100, waitpoint_secret=Secret("5e" * 32))


@asynccontextmanager
async def _embedded(store: str, directory: Path) -> AsyncIterator[FlowFabric]:
    """A fabric on a store, whose views must agree with its records in the end."""
    async with FlowFabric(url_of(store, directory), settings=SETTINGS) as fabric:
        yield fabric
        engine = (await fabric.open()).engine
        assert engine is not None
        backend: Backend = engine.deps.store.backend
        assert await backend.verify() == []


@asynccontextmanager
async def _http(_: Path) -> AsyncIterator[FlowFabric]:
    """A fabric that knows nothing but the address and token of a server."""
    async with (
        serving(SETTINGS) as server,
        FlowFabric(server.url, token=TOKEN, settings=SETTINGS) as fabric,
    ):
        yield fabric


Open = Callable[[Path], AbstractAsyncContextManager[FlowFabric]]
EVERY: Final[dict[str, Open]] = {
    **{name: partial(_embedded, name) for name in STORES},
    "http": _http,
}
# A server over HTTP has its store in memory, so nothing is tested in memory alone.
HOMES: Final = on_stores(["sqlite", "http"], ["memory", "postgres", "valkey", "valkey-cluster"])
# For the few tests that prove that a program ends the same in every home.
EVERYWHERE: Final = on_stores(
    [home for home in EVERY if home != "postgres-pooled"], named=["postgres-pooled"]
)
