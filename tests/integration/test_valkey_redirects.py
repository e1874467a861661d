"""Slots that move while a store is in use: calls and notifications follow them."""

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from flowfabric.app import open_engine
from flowfabric.backend.valkey.keys import partition_key, slot_of
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.ids import partition_of
from flowfabric.core.tokens import Secret
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.valkey_server import ValkeyCluster

SOON_S = 20.0


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    started = ValkeyCluster()
    yield started
    started.end()


def move(cluster: ValkeyCluster, slot: int) -> None:
    """Give an empty slot to the next primary."""
    old = cluster.primaries.index(cluster.owner(slot))
    new = cluster.primaries[(old + 1) % len(cluster.primaries)]
    new.expect("CLUSTER", "SETSLOT", str(slot), "NODE", new.node_id)
    for primary in cluster.primaries:
        if primary is not new:
            primary.expect("CLUSTER", "SETSLOT", str(slot), "NODE", new.node_id)


async def test_calls_and_notifications_follow_a_slot_that_moved(cluster: ValkeyCluster) -> None:
    port = cluster.primaries[0].port
    store = StoreUrl("valkey", options={"cluster": "true"}, host="127.0.0.1", port=port)
    engine = await open_engine(Settings(store=store, waitpoint_secret=Secret("5e" * 32)))
    order = ClaimOrder(worker_id="w", worker_instance_id="w1", lanes=("default",), wait_ms=30_000)
    first = await engine.executions.create(Submission(kind="k", lane="first"))
    for lane in ("second", "third"):
        partition = engine.deps.counts.of_lane(lane, first.execution_id[-36:])
        assert partition != partition_of(first.execution_id)
        slot = slot_of(partition_key(partition))
        own = msgspec.structs.replace(order, lanes=(lane,))
        waiting = asyncio.ensure_future(engine.claims.claim(own))
        await asyncio.to_thread(move, cluster, slot)
        made = await engine.executions.create(Submission(kind="k", lane=lane))
        assert partition_of(made.execution_id) == partition
        async with asyncio.timeout(SOON_S):
            (claimed,) = await waiting
        assert claimed.execution_id == made.execution_id
    await engine.close()
    await engine.deps.store.backend.close()
