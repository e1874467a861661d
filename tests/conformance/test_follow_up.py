"""What follows an applied plan, whichever way it reached the store: work that the step left its
flow goes on at once, and once only."""

from collections.abc import Awaitable, Callable

import pytest

from flowfabric.core.conditions import signal_set
from flowfabric.core.rules.attempts import Failure
from flowfabric.core.settle import EDGES_PER_STEP
from flowfabric.engine.attempts.finishing import Finish
from flowfabric.operations.attempts import SuspendOrder
from flowfabric.operations.workers import Complete
from tests.conformance.driver import Driver, unfenced
from tests.conformance.graphs import FlowUnderTest, Graph, Member
from tests.moves import act_if_due

WIDTH = EDGES_PER_STEP + 10
LEASE_MS = 1_000


async def complete(driver: Driver, flow: FlowUnderTest) -> None:
    await flow.complete("top")


async def finish(driver: Driver, flow: FlowUnderTest) -> None:
    held = (await flow.take("top")).proof
    (done,) = await driver.engine.finishing.finish([Finish(held, Complete())])
    assert not isinstance(done, Exception)


async def fail(driver: Driver, flow: FlowUnderTest) -> None:
    held = (await flow.take("top")).proof
    await driver.engine.outcomes.fail(held, Failure("broken", "permanent"))


async def cancel(driver: Driver, flow: FlowUnderTest) -> None:
    await driver.engine.outcomes.cancel(unfenced(flow.ids["top"]), "enough")


async def expire(driver: Driver, flow: FlowUnderTest) -> None:
    """The deadline of the member, found by the sweep."""
    await driver.pass_time(DEADLINE_MS)


async def expire_by_hand(driver: Driver, flow: FlowUnderTest) -> None:
    driver.clock.advance(DEADLINE_MS)
    expired = await act_if_due(driver.engine, flow.ids["top"])
    assert expired == "execution_deadline"


async def time_out_suspension(driver: Driver, flow: FlowUnderTest) -> None:
    held = (await flow.take("top")).proof
    order = SuspendOrder(resume_condition=signal_set(), timeout_at=driver.clock() + 1)
    await driver.engine.suspensions.suspend(held, order)
    driver.clock.advance(1)
    await act_if_due(driver.engine, flow.ids["top"])


async def exhaust(driver: Driver, flow: FlowUnderTest) -> None:
    """A claim meets a lost execution that may not be reclaimed any more."""
    await driver.take(flow.ids["top"], LEASE_MS)
    driver.clock.advance(LEASE_MS)
    await act_if_due(driver.engine, flow.ids["top"])
    await driver.claim_all(n=1)


DEADLINE_MS = 60_000
Way = Callable[[Driver, FlowUnderTest], Awaitable[None]]
WAYS: list[Way] = [
    complete,
    finish,
    fail,
    cancel,
    expire,
    expire_by_hand,
    time_out_suspension,
    exhaust,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
async def test_work_left_to_a_flow_goes_on_at_once(driver: Driver, way: Way) -> None:
    policy = {"max_reclaim_count": 0}
    top = Member(policy=policy, deadline_at=driver.clock() + DEADLINE_MS)
    arrows = [("top", f"t{i:04}") for i in range(WIDTH)]
    flow = await driver.graph(Graph(arrows=arrows, members={"top": top}))
    go_on, heard = driver.engine.deps.on_more, []

    def on_more(execution_id: str, flow_id: str) -> None:
        heard.append(execution_id)
        go_on(execution_id, flow_id)

    driver.engine.deps.on_more = on_more
    await way(driver, flow)
    assert heard == [flow.ids["top"]]
    await flow.settled()
    stored = await flow.flow()
    assert (stored.unsettled, stored.due_at) == ((), 0)
