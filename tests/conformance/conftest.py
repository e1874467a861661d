"""One engine per store. After every test the store must agree with its own records."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric.backend.base import Backend
from flowfabric.core.tokens import Secret
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine, engine_on
from tests.clock import VirtualClock
from tests.conformance.driver import Driver
from tests.stores import CONFORMANCE, SEARCHABLE, STORES

SECRET = Secret("5e" * 32)


@pytest.fixture(params=CONFORMANCE)
async def backend(
    request: pytest.FixtureRequest, clock: VirtualClock, tmp_path: Path
) -> AsyncIterator[Backend]:
    opened = STORES[request.param](clock, tmp_path)
    await opened.prepare()
    yield opened
    discrepancies = await opened.verify()
    await opened.close()
    assert discrepancies == []


@pytest.fixture
async def engine(backend: Backend) -> AsyncIterator[Engine]:
    built = engine_on(backend, searchable_tags=SEARCHABLE)
    await built.keys.boot(SECRET)
    await built.deps.secret.get()
    yield built
    await built.close()


@pytest.fixture
def driver(engine: Engine, clock: VirtualClock) -> Driver:
    return Driver(engine, clock, TimerSweep(engine))
