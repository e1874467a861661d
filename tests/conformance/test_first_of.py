"""One suspend that ends with the first of several: a signal, a child's end, or its time."""

from typing import Any

import msgspec
import pytest

from flowfabric.core.conditions import Condition, signal_set
from flowfabric.core.suspend_outcomes import Outcome, Satisfied, Suspended
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.errors import LeaseExpired, PartitionMismatch, SelfReferencingEdge
from flowfabric.operations.attempts import SuspendOrder
from flowfabric.operations.signals import Mail
from tests.conformance.driver import LEASE_MS, Driver, elsewhere, refused
from tests.conformance.graphs import FlowUnderTest, Graph, Member

FAMILY = Graph(members={"parent": Member(), "x": Member(), "y": Member()})
ONLY_OTHERS = Condition(condition_type="operator_only")


async def wait(driver: Driver, flow: FlowUnderTest, *children: str, **more: Any) -> Outcome:
    held = (await flow.take("parent")).proof
    given: dict[str, Any] = {
        "resume_condition": ONLY_OTHERS,
        "reason_code": "waiting_for_first",
        "timeout_behavior": "auto_resume",
        "children": tuple(flow.ids[child] for child in children),
        **more,
    }
    return await driver.engine.suspensions.try_suspend(held, SuspendOrder(**given))


async def resumed(flow: FlowUnderTest) -> Claimed:
    record = await flow.record("parent")
    assert (record.state, record.next, record.wake_at) == ("waiting", "resume", 0)
    assert (record.suspension_id, record.waitpoint_id) == ("", "")
    return await flow.take("parent")


async def test_the_first_child_to_end_ends_the_wait(driver: Driver) -> None:
    flow = await driver.graph(FAMILY)
    assert isinstance(await wait(driver, flow, "x", "y", timeout_ms=60_000), Suspended)
    record = await flow.record("parent")
    assert (record.state, record.reason) == ("suspended", "first")
    info = await driver.engine.reads.describe_execution(flow.ids["parent"])
    assert info.state_vector.blocking_reason == "waiting_for_signal"
    await flow.fail("x")
    claimed = await resumed(flow)
    assert claimed.kind == "resumed"
    assert claimed.resumed_by is None
    assert (await flow.record("y")).state == "waiting"
    await flow.complete("y")
    assert (await flow.record("parent")).state == "active"
    # Its time is over with it.
    await driver.pass_time(20_000)
    assert (await flow.record("parent")).state == "active"


async def test_a_child_that_has_ended_ends_it_at_once(driver: Driver) -> None:
    flow = await driver.graph(FAMILY)
    await flow.complete("x")
    assert isinstance(await wait(driver, flow, "x", "y"), Suspended)
    await resumed(flow)


async def test_a_signal_or_its_time_end_it_as_well(driver: Driver) -> None:
    flow = await driver.graph(FAMILY)
    more: dict[str, Any] = {"resume_condition": signal_set("go"), "mailbox": True}
    await wait(driver, flow, "x", **more)
    await driver.engine.mailboxes.signal_by_name(flow.ids["parent"], "go", Mail())
    claimed = await resumed(flow)
    assert claimed.resumed_by is not None
    assert claimed.resumed_by.how == "signal"
    # The child of the wait before ends: it is looked at, but nothing waits for it.
    await flow.complete("x")
    assert (await flow.record("parent")).state == "active"
    order = SuspendOrder(
        resume_condition=ONLY_OTHERS,
        reason_code="waiting_for_first",
        timeout_ms=5_000,
        timeout_behavior="auto_resume",
        children=(flow.ids["y"],),
    )
    assert isinstance(await driver.engine.suspensions.try_suspend(claimed.proof, order), Suspended)
    await driver.pass_time(5_000)
    claimed = await resumed(flow)
    assert claimed.resumed_by is not None
    assert claimed.resumed_by.how == "timeout"


async def test_mail_that_is_there_is_answered_instead(driver: Driver) -> None:
    flow = await driver.graph(FAMILY)
    await driver.engine.mailboxes.signal_by_name(flow.ids["parent"], "go", Mail())
    more: dict[str, Any] = {"resume_condition": signal_set("go"), "mailbox": True}
    assert isinstance(await wait(driver, flow, "x", **more), Satisfied)
    await flow.complete("x")
    assert (await flow.record("parent")).state == "active"


async def test_other_suspensions_are_not_ended_by_children(driver: Driver) -> None:
    flow = await driver.graph(FAMILY)
    await wait(driver, flow, "x", reason_code="waiting_for_signal")
    await flow.complete("x")
    assert (await flow.record("parent")).state == "suspended"


async def test_only_children_of_the_flow_are_waited_for(driver: Driver) -> None:
    flow = await driver.graph(FAMILY)
    held = (await flow.take("parent")).proof
    for child, error in (
        (flow.ids["parent"], SelfReferencingEdge),
        (elsewhere(flow.ids["parent"]), PartitionMismatch),
    ):
        order = SuspendOrder(resume_condition=ONLY_OTHERS, children=(child,))
        with pytest.raises(error):
            await driver.engine.suspensions.try_suspend(held, order)
    driver.clock.advance(LEASE_MS)
    order = msgspec.structs.replace(order, children=(flow.ids["x"],))
    with refused(LeaseExpired):
        await driver.engine.suspensions.try_suspend(held, order)


async def test_a_flow_whose_parent_waits_for_the_first_counts_it_as_suspended(
    driver: Driver,
) -> None:
    flow = await driver.graph(FAMILY)
    await wait(driver, flow, "x")
    found = await driver.engine.flow_reads.describe_flow(flow.flow_id)
    assert found.members["suspended"] == 1
    await flow.complete("x")
    found = await driver.engine.flow_reads.describe_flow(flow.flow_id)
    assert found.members["suspended"] == 0
