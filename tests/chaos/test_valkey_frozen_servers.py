"""A server that is stopped where it is: its connections stay, and it answers nothing. Whoever does
not need it goes on; whoever does is served by it when it goes on, or by the one that took over."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from flowfabric.backend.valkey.keys import slot_of
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine
from flowfabric.engine.attempts import claims
from flowfabric.errors import StoreTimeout
from flowfabric.operations.executions import Submission
from tests.chaos.load import completions, ended_well, engine_at, lost_and_doubled
from tests.chaos.test_valkey_failover import HINTS, finished_one, keys_at, take_over, victim_of
from tests.chaos.valkey_load import Load, settings_for
from tests.valkey_server import ValkeyCluster, ValkeyServer, await_server

SOON_S = 20.0
# Longer than any test: nobody is helped by giving up a connection, or by a look by chance.
NEVER_S = 600.0


@pytest.fixture(params=["alone"])
def cluster(request: pytest.FixtureRequest) -> Iterator[ValkeyCluster]:
    options = ("--cluster-require-full-coverage", "no", "--cluster-replica-no-failover", "yes")
    started = ValkeyCluster(*options, replicas=request.param == "with replicas")
    yield started
    started.end()


@pytest.fixture
async def engine(cluster: ValkeyCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    monkeypatch.setattr(claims, "SAFETY_NET_S", NEVER_S)
    never = f"{NEVER_S * 1_000:.0f}"
    settings = settings_for(cluster.primaries[0], cluster=True, request_timeout_ms=never)
    async with engine_at(settings) as opened:
        yield opened
        for server in cluster.servers:
            server.thaw()


async def delayed(engine: Engine, key: str) -> str:
    # Servers of this machine have its clock.
    due_at = time.time_ns() // 1_000_000 + 200
    order = Submission(kind="k", idempotency_key=key, delay_until=due_at)
    return (await engine.executions.create(order)).execution_id


@asynccontextmanager
async def sweeping(engine: Engine) -> AsyncIterator[None]:
    async def sweep() -> None:
        while True:
            await timers.visit()

    timers = TimerSweep(engine)
    task = asyncio.ensure_future(sweep())
    yield
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("has", ["executions", "hints", "configuration"])
async def test_the_others_go_on_while_a_primary_is_frozen(
    cluster: ValkeyCluster, engine: Engine, has: str
) -> None:
    """Each primary has executions; one has hints, too, and one the configuration."""
    config, hints = (cluster.owner(slot_of(key)) for key in HINTS)
    (other,) = {*cluster.primaries} - {config, hints}
    victim = {"executions": other, "hints": hints, "configuration": config}[has]
    alive, frozen = keys_at(cluster, victim, at=False), keys_at(cluster, victim, at=True)
    load = Load(engine)
    late = {await load.submit(next(frozen)), await delayed(engine, next(frozen))}
    victim.freeze()
    stuck = asyncio.ensure_future(load.submit(next(frozen)))
    async with asyncio.timeout(SOON_S), sweeping(engine):
        # The first asks the frozen one for its work, which is older; the answer comes late.
        for n in (1, 5) * 10:
            own = await load.submit(next(alive))
            assert await finished_one(engine, n) == own
        own = await delayed(engine, next(alive))
        assert await finished_one(engine) == own
    assert not stuck.done()
    waiting = asyncio.ensure_future(finished_one(engine))
    victim.thaw()
    async with asyncio.timeout(SOON_S), sweeping(engine):
        late.add(await stuck)
        found = {await waiting, await finished_one(engine), await finished_one(engine)}
    assert found == late
    assert set((await completions(engine)).values()) == {1}
    assert await engine.deps.store.backend.verify() == []


@pytest.mark.parametrize("cluster", ["with replicas"], indirect=True)
async def test_who_takes_over_for_a_frozen_primary_has_what_was_asked_of_it(
    cluster: ValkeyCluster, engine: Engine
) -> None:
    victim = victim_of(cluster, has_hints=True)
    load = Load(engine)
    load.start()
    await load.more(50)
    acknowledged = list(load.submitted)
    assert (await asyncio.to_thread(victim.run, "WAIT", "1", "5000")).startswith(b":1")
    victim.freeze()
    stuck = asyncio.ensure_future(load.submit(next(keys_at(cluster, victim, at=True))))
    await asyncio.to_thread(take_over, cluster, victim)
    await load.more(50)
    await stuck
    victim.thaw()
    await asyncio.to_thread(await_server, has_no_slots, victim)
    await load.more(50)
    await ended_well(load, acknowledged)


def has_no_slots(server: ValkeyServer) -> bool:
    """It has heard that another one took over."""
    nodes = server.run("CLUSTER", "NODES").decode().splitlines()
    (own,) = (line for line in nodes if "myself" in line)
    return own.endswith("connected")


# ---- without anybody to take over


@pytest.fixture
def server() -> Iterator[ValkeyServer]:
    started = ValkeyServer("--appendfsync", "always")
    yield started
    started.end()


async def test_a_frozen_server_is_asked_again_and_told_of_in_the_end(server: ValkeyServer) -> None:
    settings = settings_for(server, request_timeout_ms="1000", retry_ms="2000")
    async with engine_at(settings) as engine:
        server.freeze()
        with pytest.raises(StoreTimeout, match=rf"127.0.0.1:{server.port}: no answer within 1 s"):
            await engine.executions.create(Submission(kind="k"))
        load = Load(engine)
        load.start(callers=2, workers=2)
        stuck = asyncio.ensure_future(load.submit())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(stuck), 1.5)
        server.thaw()
        await stuck
        await load.more(50)
        await load.stop()
        await load.finish()
        assert list(lost_and_doubled(load, await completions(engine))) == []
        assert load.faults == []
        assert await engine.deps.store.backend.verify() == []
