"""Closing a server over work that hangs: each part has its time once."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from flowfabric.app import duties_of
from flowfabric.backend.memory import open_memory
from flowfabric.config import Settings, StoreUrl
from flowfabric.engine import Engine, draining, engine_on
from flowfabric.engine.streams import tails
from flowfabric.fabric.connection import connect_embedded
from flowfabric.server import boot
from flowfabric.telemetry.metrics import Metrics
from tests.jumping_loop import run_jumping

SETTINGS = Settings(store=StoreUrl("memory"))


@pytest.fixture
async def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(tails, "GRACE_S", 0.01)
    monkeypatch.setattr(draining, "DRAIN_S", 0.01)
    return engine_on(open_memory())


class _Overruns(Metrics):
    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def overran_shutdown(self) -> None:
        self.number += 1


async def test_a_read_that_hangs_is_waited_for_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    returned = engine.streams.permits.returned

    async def counted(timeout_s: float) -> bool:
        waits.append(timeout_s)
        return await returned(timeout_s)

    monkeypatch.setattr(engine.streams.permits, "returned", counted)
    overruns = _Overruns()
    with engine.streams.permits:
        await boot._close(engine, duties_of(engine, SETTINGS), overruns)
    assert waits == [tails.GRACE_S]
    assert overruns.number == 1


async def test_background_work_that_hangs_is_abandoned_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = asyncio.Event()

    async def hang(_: str) -> bool:
        begun.set()
        await asyncio.Event().wait()
        return False

    monkeypatch.setattr(engine.settling, "_step", hang)
    engine.settling.go_on("", "a flow")
    await begun.wait()
    assert not await engine.drain()
    assert await engine.drain()
    await engine.close()
    await engine.deps.store.backend.close()


async def _hang(*_: object, **__: object) -> None:
    await asyncio.Event().wait()


async def _hang_in_every_part(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The background works on a flow, a lane and slots; a duty has more for it when that was
    abandoned."""
    backend, is_due = engine.deps.store.backend, asyncio.Event()

    async def due(*_: object) -> None:
        is_due.set()
        await asyncio.sleep(35)
        engine.settling.go_on("", "another flow")
        engine.lanes.used("default", "another lane")
        with suppress(asyncio.CancelledError):
            await _hang()
        await _hang()

    monkeypatch.setattr(backend, "due", due)
    for name in ("settle", "config_put", "vacate", "purge"):
        monkeypatch.setattr(backend, name, _hang)
    engine.settling.go_on("", "a flow")
    engine.lanes.used("default", "a lane")
    asyncio.ensure_future(engine.deps.slots.give_back("", "", ())).cancel()
    engine.streams.permits.__enter__()
    await is_due.wait()


Opened = tuple[Engine, Callable[[], Awaitable[None]]]


async def _server() -> Opened:
    engine = engine_on(open_memory())
    duties = duties_of(engine, SETTINGS)
    duties.start()
    return engine, lambda: boot._close(engine, duties, Metrics())


async def _embedded() -> Opened:
    opened = await connect_embedded(SETTINGS, duties=True)
    assert opened.engine is not None
    return opened.engine, opened.close


@pytest.mark.parametrize("opening", [_server, _embedded])
def test_each_of_three_steps_has_fifteen_seconds(
    opening: Callable[[], Awaitable[Opened]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def seconds_to_close() -> float:
        engine, close = await opening()
        await _hang_in_every_part(engine, monkeypatch)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await close()
        return loop.time() - began

    assert run_jumping(seconds_to_close()) <= 45
