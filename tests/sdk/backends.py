"""Every home the SDK's programs run on, unchanged. A further one joins by one entry in BACKENDS."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from flowfabric import FlowFabric
from flowfabric.backend.base import Backend
from flowfabric.config import Settings

SETTINGS = Settings(timer_sweep_interval_ms=100)


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


Open = Callable[[Path], AbstractAsyncContextManager[FlowFabric]]
BACKENDS: dict[str, Open] = {"memory": _memory, "sqlite": _sqlite}
