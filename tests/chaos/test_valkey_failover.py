"""A primary of a cluster dies under load and its replica takes over."""

import asyncio
from collections.abc import Iterator

import pytest

from flowfabric.backend.valkey.keys import CONFIG, lane_key, slot_of
from flowfabric.core.ids import PartitionCounts
from flowfabric.engine import Engine
from flowfabric.operations.workers import ClaimOrder
from tests.chaos.load import RETRY_S, ended_well, engine_at
from tests.chaos.valkey_load import Load, settings_for
from tests.valkey_server import ValkeyCluster, ValkeyServer, await_server

# Less than a call is repeated for.
SOON_S = 20.0
HINTS = (CONFIG, lane_key("default", "default"))


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    """Whose other primaries serve their slots while one is away. Its replica takes over when it is
    told to: servers that a stalled machine keeps from answering must not be taken for dead."""
    options = ("--cluster-require-full-coverage", "no", "--cluster-replica-no-failover", "yes")
    started = ValkeyCluster(*options, replicas=True)
    yield started
    started.end()


def victim_of(cluster: ValkeyCluster, *, has_hints: bool) -> ValkeyServer:
    """A primary that does, or does not, say where work and timers are."""
    owners = {cluster.owner(slot_of(key)) for key in HINTS}
    return next(one for one in cluster.primaries if (one in owners) == has_hints)


def keys_at(cluster: ValkeyCluster, server: ValkeyServer, *, at: bool) -> Iterator[str]:
    """Idempotency keys whose executions lie, or do not lie, on a server."""
    counts = PartitionCounts()
    for number in range(1_000_000):
        key = f"key-{number}"
        slot = slot_of(f"{{fp:{counts.of_key('default', key)}}}")
        if (cluster.owner(slot) is server) == at:
            yield key


def take_over(cluster: ValkeyCluster, victim: ValkeyServer) -> None:
    place = cluster.primaries.index(victim)
    heir = cluster.replicas[place]
    heir.expect("CLUSTER", "FAILOVER", "TAKEOVER")
    own = f"{heir.port}@{heir.bus_port} master".encode()
    for server in {*cluster.servers} - {victim}:
        await_server(
            lambda one: own in one.run("CLUSTER", "NODES").replace(b"myself,", b""), server
        )


@pytest.mark.parametrize("has_hints", [False, True], ids=["elsewhere", "at the hints"])
async def test_a_failover_loses_nothing_that_was_replicated(
    cluster: ValkeyCluster, has_hints: bool
) -> None:
    victim = victim_of(cluster, has_hints=has_hints)
    async with engine_at(settings_for(cluster.primaries[0], cluster=True)) as engine:
        load = Load(engine)
        load.start()
        await load.more(100)
        acknowledged = list(load.submitted)
        assert (await asyncio.to_thread(victim.run, "WAIT", "1", "5000")).startswith(b":1")
        await asyncio.to_thread(victim.kill)
        stuck = asyncio.ensure_future(load.submit(next(keys_at(cluster, victim, at=True))))
        for replica in cluster.replicas * 5:
            await asyncio.to_thread(replica.run, "PING")
        assert not stuck.done()
        await asyncio.to_thread(take_over, cluster, victim)
        await load.more(200)
        await stuck
        await ended_well(load, acknowledged)


async def test_the_others_go_on_while_a_primary_is_away(cluster: ValkeyCluster) -> None:
    victim = victim_of(cluster, has_hints=False)
    alive, dead = keys_at(cluster, victim, at=False), keys_at(cluster, victim, at=True)
    async with engine_at(settings_for(cluster.primaries[0], cluster=True)) as engine:
        load = Load(engine)
        hanging = await load.submit(next(dead))
        await asyncio.to_thread(victim.kill)
        stuck = asyncio.ensure_future(load.submit(next(dead)))
        for n in (5, 1) * 10:
            own = await load.submit(next(alive))
            async with asyncio.timeout(SOON_S):
                assert await finished_one(engine, n) == own
        assert not stuck.done()
        await asyncio.to_thread(take_over, cluster, victim)
        async with asyncio.timeout(RETRY_S):
            late = await stuck
            found = {await finished_one(engine) for _ in range(2)}
        assert found == {hanging, late}


async def finished_one(engine: Engine, n: int = 1) -> str:
    order = ClaimOrder(
        worker_id="w", worker_instance_id="w1", lanes=("default",), wait_ms=30_000, n=n
    )
    (claimed,) = await engine.claims.claim(order)
    await engine.outcomes.complete(claimed.proof)
    return claimed.execution_id
