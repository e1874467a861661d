"""What a store says of itself."""

from flowfabric.operations.store import Store
from tests.conformance.driver import Driver
from tests.proofs import proves


@proves(Store.describe)
async def test_a_store_tells_its_clock_and_its_limits(driver: Driver) -> None:
    facts = await driver.engine.facts.describe()
    assert facts.now == driver.clock()
    assert facts.family
    assert facts.interface > 0
    assert facts.layout > 0


@proves(Store.partitions)
async def test_a_store_tells_how_many_partitions_it_has(driver: Driver) -> None:
    found = await driver.engine.facts.partitions()
    counts = driver.engine.deps.counts
    assert (
        found.num_flow_partitions,
        found.num_budget_partitions,
        found.num_quota_partitions,
    ) == (counts.flow, counts.budget, counts.quota)
