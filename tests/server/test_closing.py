"""Closing a server over work that hangs: each part has its time once."""

import asyncio

import pytest

from flowfabric.app import duties_of
from flowfabric.backend.memory import open_memory
from flowfabric.config import Settings, StoreUrl
from flowfabric.engine import Engine, draining, engine_on
from flowfabric.engine.streams import tails
from flowfabric.server import boot
from flowfabric.telemetry.metrics import Metrics


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
    settings = Settings(store=StoreUrl("memory"))
    with engine.streams.permits:
        await boot._close(engine, duties_of(engine, settings), overruns)
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
