"""Servers of a cluster that have not heard of each other, or no longer know of each other."""

from collections.abc import Iterator
from itertools import product

import pytest

from tests.chaos.load import engine_at
from tests.chaos.test_valkey_failover import finished_one, keys_at
from tests.chaos.valkey_load import Load, settings_for
from tests.valkey_server import ValkeyCluster

REFRESHES = 8


@pytest.fixture
def cluster() -> Iterator[ValkeyCluster]:
    started = ValkeyCluster("--cluster-require-full-coverage", "no")
    yield started
    started.end()


async def test_a_server_that_knows_of_few_slots_takes_none_from_us(
    cluster: ValkeyCluster,
) -> None:
    *others, last = cluster.primaries
    async with engine_at(settings_for(last, cluster=True)) as engine:
        load = Load(engine)
        keys = [keys_at(cluster, primary, at=True) for primary in cluster.primaries]
        # First one server still knows of all slots, then none does.
        for forgetful in (others, [last]):
            for one, other in product(forgetful, cluster.primaries):
                if one is not other:
                    one.expect("CLUSTER", "FORGET", other.node_id)
            for _ in range(REFRESHES):
                await engine.deps.store.backend._topology.refresh()  # type: ignore[attr-defined]
                for own_keys in keys:
                    submitted = await load.submit(next(own_keys))
                    assert await finished_one(engine) == submitted
