"""Slots with live executions move under load: callers go on, nothing is lost or done twice."""

import asyncio
from collections.abc import Iterator

import pytest

from flowfabric.backend.valkey.keys import CONFIG, lane_key, slot_of
from flowfabric.engine import Engine
from flowfabric.engine.attempts.outcomes import Done
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.chaos.load import completions, engine_at, lost_and_doubled
from tests.chaos.resharding import at_once, key_by_key, next_primary
from tests.chaos.valkey_load import Load, settings_for
from tests.valkey_server import ValkeyCluster

LIVE = 10


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    started = ValkeyCluster()
    yield started
    started.end()


async def assert_kept(load: Load, engine: Engine) -> None:
    await load.stop()
    await load.finish()
    assert load.faults == []
    assert list(lost_and_doubled(load, await completions(engine))) == []
    assert await engine.deps.store.backend.verify() == []


async def test_a_slot_is_moved_key_by_key_while_work_runs(cluster: ValkeyCluster) -> None:
    async with engine_at(settings_for(cluster.primaries[0], cluster=True)) as engine:
        load = Load(engine)
        made = [
            await engine.executions.create(Submission(kind="work", lane="still"))
            for _ in range(LIVE)
        ]
        order = ClaimOrder(worker_id="w", worker_instance_id="w1", lanes=("still",), n=LIVE)
        held = await engine.claims.claim(order)
        load.start()
        await load.more(50)
        finishing: list[asyncio.Future[Done]] = []
        slot = slot_of(made[0].execution_id)
        async for _ in key_by_key(cluster, slot):
            # Its holders wait while the slot is in two places; all others go on.
            if held:
                finishing.append(asyncio.ensure_future(engine.outcomes.complete(held.pop().proof)))
            await load.more(1)
            assert not any(one.done() for one in finishing)
        assert len(finishing) > 1
        for done in await asyncio.gather(*finishing):
            assert done.public_state == "completed"
        await load.more(50)
        await assert_kept(load, engine)


@pytest.mark.parametrize("key", [CONFIG, lane_key("default", "default")])
async def test_slots_of_hints_are_moved_key_by_key(cluster: ValkeyCluster, key: str) -> None:
    async with engine_at(settings_for(cluster.primaries[0], cluster=True)) as engine:
        load = Load(engine)
        load.start()
        await load.more(50)
        async for _ in key_by_key(cluster, slot_of(key)):
            pass
        await load.more(50)
        await assert_kept(load, engine)


async def test_slots_are_moved_at_once_while_work_runs(cluster: ValkeyCluster) -> None:
    async with engine_at(settings_for(cluster.primaries[0], cluster=True)) as engine:
        load = Load(engine)
        load.start()
        await load.more(50)
        for first in (0, 6_000, 12_000):
            await at_once(cluster.owner(first), next_primary(cluster, first), first, first + 3_000)
            await load.more(50)
        await assert_kept(load, engine)


async def test_a_new_primary_gets_slots_and_our_functions(cluster: ValkeyCluster) -> None:
    async with engine_at(settings_for(cluster.primaries[0], cluster=True)) as engine:
        load = Load(engine)
        load.start()
        await load.more(50)
        old, new = cluster.primaries[0], await asyncio.to_thread(cluster.grow)
        await at_once(old, new, 0, 3_000)
        await load.more(100)
        await assert_kept(load, engine)
        assert b"flowfabric" in new.run("FUNCTION", "LIST")
