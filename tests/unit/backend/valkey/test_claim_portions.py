"""A claim of many is asked for in portions that hold no server up."""

from flowfabric.backend.valkey.calls import MOST_ITEMS
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.conformance.driver import Driver

MANY = MOST_ITEMS + 25


async def test_many_are_claimed_in_their_order(driver: Driver) -> None:
    own = [
        (
            await driver.engine.executions.create(Submission(kind="work", priority=MANY - n))
        ).execution_id
        for n in range(MANY)
    ]
    order = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",), n=MANY + 1)
    claimed = await driver.engine.claims.claim(order)
    assert [one.record.execution_id for one in claimed] == own


async def test_fewer_than_asked_for_end_the_asking(driver: Driver) -> None:
    for _ in range(MOST_ITEMS + 1):
        await driver.submit()
    order = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",), n=MANY)
    assert len(await driver.engine.claims.claim(order)) == MOST_ITEMS + 1
    assert await driver.engine.claims.claim(order) == []
