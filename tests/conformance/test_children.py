"""Parking: a lease holder waits for its children without holding a worker."""

import asyncio
from typing import Any

import pytest

from flowfabric.engine.attempts.outcomes import Done
from flowfabric.errors import (
    ExecutionNotFound,
    ExecutionNotInFlow,
    FlowFabricError,
    InvalidInput,
    LeaseExpired,
    PartitionMismatch,
    SelfReferencingEdge,
    StaleLease,
)
from tests.conformance.driver import NOWHERE, Driver, elsewhere, guess, refused, unfenced
from tests.conformance.graphs import FlowUnderTest, Graph, Member, chain

FAMILY = Graph(members={"parent": Member(), "x": Member(), "y": Member()})


async def park(driver: Driver, flow: FlowUnderTest, *children: str) -> Done:
    held = (await flow.take("parent")).proof
    ids = tuple(flow.ids[child] for child in children)
    return await driver.engine.outcomes.wait_for_children(held, ids)


# ---- without names


async def test_parking_with_nothing_open_goes_on_at_once(driver: Driver) -> None:
    held = await driver.reach("active")
    done = await driver.engine.outcomes.wait_for_children(held)
    now = driver.clock()
    assert done == Done(held.execution_id, "waiting", was="active", now=now)
    record = await driver.record(held.execution_id)
    assert (record.state, record.reason, record.next) == ("waiting", "", "resume")
    await driver.assert_released(held)
    claimed = await driver.claim()
    assert (claimed.kind, claimed.record.attempt_id) == ("resumed", held.attempt_id)


async def test_parking_counts_the_edges_there_are(driver: Driver) -> None:
    """A member whose dependencies are all met parks and goes on."""
    flow = await driver.graph(chain("a", "b"))
    await flow.complete("a")
    held = (await flow.take("b")).proof
    done = await driver.engine.outcomes.wait_for_children(held)
    assert done.public_state == "waiting"


# ---- with names


async def test_a_parent_waits_for_the_children_it_names(driver: Driver) -> None:
    flow = await driver.graph(FAMILY)
    driver.clock.advance(9)
    held = (await flow.take("parent")).proof
    children = (flow.ids["x"], flow.ids["y"], flow.ids["x"])
    done = await driver.engine.outcomes.wait_for_children(held, children)
    now = driver.clock()
    assert done == Done(held.execution_id, "waiting_children", was="active", now=now)
    record = await flow.record("parent")
    assert (record.state, record.reason, record.next) == ("blocked", "dependencies", "resume")
    assert record.detail == "waiting for child executions to complete"
    await driver.assert_released(held)
    (attempt,) = await driver.attempts(held.execution_id)
    assert (attempt.state, attempt.suspension_id) == ("suspended", "waiting_children")
    assert (attempt.suspended_at, attempt.closed_at) == (driver.clock(), 0)
    edges = await flow.edges_into("parent")
    assert {name: (edge.kind, edge.state) for name, edge in edges.items()} == {
        "x": ("finished", "open"),
        "y": ("finished", "open"),
    }
    assert (await flow.group("parent")).n == 2
    assert (await flow.flow()).counts == {"waiting_children": 1, "waiting": 2}
    assert await driver.completions() == []


async def test_the_parent_resumes_once_when_the_last_child_has_ended(driver: Driver) -> None:
    flow = await driver.graph(FAMILY)
    await park(driver, flow, "x", "y")
    await flow.complete("x")
    assert (await flow.record("parent")).state == "blocked"
    await flow.fail("y")
    record = await flow.record("parent")
    assert (record.state, record.next) == ("waiting", "resume")
    claimed = await flow.take("parent")
    assert (claimed.kind, claimed.record.attempt_index) == ("resumed", 0)
    assert claimed.record.attempt_count == 1
    await driver.engine.outcomes.complete(claimed.proof)
    assert (await flow.flow()).counts == {"completed": 2, "failed": 1}


@pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled", "expired", "skipped"])
async def test_every_end_of_a_child_counts(driver: Driver, outcome: str) -> None:
    members = {
        "parent": Member(),
        "top": Member(),
        "x": Member(deadline_at=driver.clock() + 99),
    }
    arrows = [("top", "x")] if outcome == "skipped" else []
    flow = await driver.graph(Graph(arrows=arrows, members=members))
    await park(driver, flow, "x")
    match outcome:
        case "completed":
            await flow.complete("x")
        case "failed":
            await flow.fail("x")
        case "cancelled":
            await driver.engine.outcomes.cancel(unfenced(flow.ids["x"]), "enough")
        case "expired":
            await driver.pass_time(99)
        case _:
            await flow.fail("top")
    assert (await flow.record("x")).state == outcome
    assert (await flow.record("parent")).state == "waiting"
    edge = (await flow.edges_into("parent"))["x"]
    assert (edge.state, edge.resolved_at) == ("satisfied", driver.clock())


async def test_a_retrying_child_has_not_ended(driver: Driver) -> None:
    policy = {"timeout_policy": {"attempt_timeout_ms": 5}, "retry_policy": {}}
    members = {"parent": Member(), "x": Member(policy=policy)}
    flow = await driver.graph(Graph(members=members))
    await park(driver, flow, "x")
    held = (await flow.take("x")).proof
    await driver.engine.outcomes.delay(held, for_ms=10)
    assert (await flow.record("parent")).state == "blocked"


async def test_children_that_ended_before_count_too(driver: Driver) -> None:
    flow = await driver.graph(FAMILY)
    await flow.fail("x")
    done = await park(driver, flow, "x", "y")
    assert done.public_state == "waiting_children"
    assert (await flow.edges_into("parent"))["x"].state == "satisfied"
    await flow.complete("y")
    assert (await flow.record("parent")).state == "waiting"


async def test_children_that_all_ended_before_let_the_parent_go_on(driver: Driver) -> None:
    flow = await driver.graph(FAMILY)
    await flow.complete("x")
    await flow.fail("y")
    done = await park(driver, flow, "x", "y")
    assert done.public_state == "waiting"
    assert (await flow.group("parent")).state == "satisfied"
    assert (await flow.take("parent")).kind == "resumed"


async def test_a_child_that_ends_while_the_parent_parks_resumes_it_once(driver: Driver) -> None:
    for _ in range(10):
        flow = await driver.graph(Graph(members={"parent": Member(), "x": Member()}))
        parent, child = (await flow.take("parent")).proof, (await flow.take("x")).proof
        await asyncio.gather(
            driver.engine.outcomes.wait_for_children(parent, (flow.ids["x"],)),
            driver.engine.outcomes.complete(child),
        )
        record = await flow.record("parent")
        assert (record.state, record.next) == ("waiting", "resume")
        claimed = await flow.take("parent")
        assert claimed.record.attempt_count == 1
        await driver.engine.outcomes.complete(claimed.proof)


async def test_a_parent_parks_in_rounds(driver: Driver) -> None:
    flow = await driver.graph(FAMILY)
    await park(driver, flow, "x")
    await flow.complete("x")
    assert (await park(driver, flow, "y")).public_state == "waiting_children"
    group = await flow.group("parent")
    assert (group.round, group.n, group.succeeded, group.state) == (2, 1, 0, "pending")
    await flow.complete("y")
    assert (await flow.record("parent")).state == "waiting"
    assert (await park(driver, flow, "x", "y")).public_state == "waiting"


async def test_an_edge_of_an_earlier_round_moves_nothing(driver: Driver) -> None:
    """An operator frees a parent; what its old children do later is not counted."""
    flow = await driver.graph(FAMILY)
    await park(driver, flow, "x", "y")
    await flow.complete("x")
    await flow.complete("y")
    await park(driver, flow, "x")
    group = await flow.group("parent")
    assert (group.round, group.n, group.succeeded) == (2, 1, 1)


async def test_a_member_with_dependencies_of_its_own_can_park(driver: Driver) -> None:
    graph = Graph(arrows=[("a", "parent")], members={"x": Member()})
    flow = await driver.graph(graph)
    await flow.complete("a")
    assert (await park(driver, flow, "x")).public_state == "waiting_children"
    await flow.fail("x")
    assert (await flow.record("parent")).state == "waiting"
    await flow.complete("parent")


async def test_a_parked_parent_that_is_cancelled_stays_cancelled(driver: Driver) -> None:
    flow = await driver.graph(FAMILY)
    await park(driver, flow, "x")
    await driver.engine.outcomes.cancel(unfenced(flow.ids["parent"]), "enough")
    await flow.complete("x")
    assert (await flow.record("parent")).state == "cancelled"
    (attempt,) = await driver.attempts(flow.ids["parent"])
    assert attempt.state == "ended_cancelled"


async def test_a_child_created_by_its_parent_can_be_waited_for(driver: Driver) -> None:
    flow = await driver.graph(Graph(members={"parent": Member()}))
    held = (await flow.take("parent")).proof
    child = await driver.submit(flow_id=flow.flow_id, idempotency_key="child-1")
    assert await driver.submit(flow_id=flow.flow_id, idempotency_key="child-1") == child
    await driver.engine.outcomes.wait_for_children(held, (child,))
    await driver.engine.outcomes.complete((await driver.take(child)).proof)
    assert (await flow.record("parent")).state == "waiting"


# ---- refusals


async def other_flow(driver: Driver, flow: FlowUnderTest) -> str:
    """A member of another flow that happens to live in the same partition."""
    counts = driver.engine.deps.counts
    while True:
        other = await driver.graph(Graph(members={"a": Member()}))
        if counts.of_flow(other.flow_id) == counts.of_flow(flow.flow_id):
            return other.ids["a"]


async def test_only_members_of_the_same_flow_can_be_waited_for(driver: Driver) -> None:
    flow = await driver.graph(FAMILY)
    held = (await flow.take("parent")).proof
    here = flow.ids["x"]
    missing = here[:-4] + ("0000" if here[-4:] != "0000" else "1111")
    rows: list[tuple[Any, type[FlowFabricError]]] = [
        ("7", InvalidInput),
        (7, InvalidInput),
        (flow.ids["parent"], SelfReferencingEdge),
        (elsewhere(here), PartitionMismatch),
        (missing, ExecutionNotFound),
        (await other_flow(driver, flow), ExecutionNotInFlow),
    ]
    before = await driver.snapshot()
    for child, error in rows:
        with refused(error):
            await driver.engine.outcomes.wait_for_children(held, (here, child))
    assert await driver.snapshot() == before


async def test_a_standalone_execution_has_no_children(driver: Driver) -> None:
    held = await driver.reach("active")
    other = await driver.submit()
    with refused(ExecutionNotInFlow):
        await driver.engine.outcomes.wait_for_children(held, (other,))
    assert (await driver.record(held.execution_id)).state == "active"


async def test_the_lease_is_judged_before_the_children(driver: Driver) -> None:
    flow = await driver.graph(FAMILY)
    held = (await flow.take("parent")).proof
    with refused(StaleLease):
        await driver.engine.outcomes.wait_for_children(guess(held.execution_id), (NOWHERE,))
    with refused(ExecutionNotFound):
        await driver.engine.outcomes.wait_for_children(guess(NOWHERE), ("7",))
    driver.clock.advance(30_000)
    with refused(LeaseExpired):
        await driver.engine.outcomes.wait_for_children(held, (NOWHERE,))
