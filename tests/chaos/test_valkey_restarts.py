"""A Valkey server that dies, forgets its functions or drops connections: callers go on."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from itertools import cycle
from typing import NamedTuple

import pytest

from flowfabric.config import Settings
from flowfabric.engine import Engine
from flowfabric.errors import FlowFabricError, LeaseExpired
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.chaos.load import completions, engine_at, lost_and_doubled
from tests.chaos.valkey_load import Load, be_patient, settings_for
from tests.clock import VirtualClock
from tests.valkey_server import ValkeyCluster, ValkeyServer

ROUNDS = 3


class Home(NamedTuple):
    """The servers of a store; the first is the one that is named."""

    servers: list[ValkeyServer]
    is_cluster: bool

    def settings(self) -> Settings:
        return settings_for(self.servers[0], cluster=self.is_cluster)

    def run(self, *words: str) -> None:
        for server in self.servers:
            server.run(*words)


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    started = ValkeyServer("--appendfsync", "always")
    yield started
    started.end()


@pytest.fixture(params=["standalone", "cluster"])
def home(request: pytest.FixtureRequest) -> Iterator[Home]:
    if request.param == "standalone":
        yield Home([request.getfixturevalue("server")], is_cluster=False)
        return
    cluster = ValkeyCluster("--appendfsync", "always")
    yield Home(cluster.primaries, is_cluster=True)
    cluster.end()


@pytest.fixture
async def engine(home: Home) -> AsyncIterator[Engine]:
    async with engine_at(home.settings()) as opened:
        yield opened


async def assert_kept(load: Load, engine: Engine) -> None:
    await load.stop()
    await load.finish()
    assert list(lost_and_doubled(load, await completions(engine))) == []
    assert await engine.deps.store.backend.verify() == []


async def test_a_restarted_server_has_everything_that_was_acknowledged(
    home: Home, engine: Engine
) -> None:
    load = Load(engine)
    load.start()
    for _, server in zip(range(ROUNDS), cycle(home.servers), strict=False):
        await load.more(50)
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    await load.more(50)
    await assert_kept(load, engine)
    assert load.faults == []


async def test_leases_outlive_their_server_and_end_in_their_time(
    server: ValkeyServer, clock: VirtualClock
) -> None:
    order = ClaimOrder(
        worker_id="w", worker_instance_id="w1", lanes=("default",), lease_ms=30_000, n=2
    )
    async with engine_at(settings_for(server), clock) as engine:
        for _ in range(2):
            await engine.executions.create(Submission(kind="k"))
        held, lost = await engine.claims.claim(order)
        await asyncio.to_thread(server.kill)
        clock.advance(29_000)
        await asyncio.to_thread(server.start)
        await engine.leases.renew(held.proof, 30_000)
        clock.advance(1_000)
        with pytest.raises(LeaseExpired):
            await engine.outcomes.complete(lost.proof)
        await engine.outcomes.complete(held.proof)


async def test_forgotten_functions_are_loaded_once_and_nobody_notices(
    home: Home, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    load = Load(engine)
    load.start(callers=16, workers=16)
    with caplog.at_level(logging.WARNING, "flowfabric.backend.valkey"):
        for _ in range(ROUNDS):
            await load.more(50)
            await asyncio.to_thread(home.run, "FUNCTION", "FLUSH", "SYNC")
        await load.more(50)
    loads = [one for one in caplog.messages if "loading the library" in one]
    assert ROUNDS <= len(loads) <= ROUNDS * len(home.servers)
    await assert_kept(load, engine)
    assert load.faults == []


async def test_connections_cut_in_the_middle_of_calls_lose_nothing(
    home: Home, engine: Engine
) -> None:
    load = Load(engine)
    load.start()
    for _ in range(3 * ROUNDS):
        await load.more(10)
        await asyncio.to_thread(home.run, "CLIENT", "KILL", "TYPE", "normal")
        await asyncio.to_thread(home.run, "CLIENT", "KILL", "TYPE", "pubsub")
    await load.more(10)
    await assert_kept(load, engine)
    assert load.faults == []


async def test_a_server_that_stays_away_is_told_as_retryable(home: Home, engine: Engine) -> None:
    be_patient(engine, 1.0)
    for server in home.servers:
        server.kill()
    with pytest.raises(FlowFabricError) as caught:
        await engine.executions.create(Submission(kind="k"))
    assert caught.value.retryable
    assert caught.value.code == "transport"
