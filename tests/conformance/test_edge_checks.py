"""Edges that are wrong in two ways: which one is told; and where each rule begins to hold."""

from uuid import uuid4

import pytest

from flowfabric.core.ids import for_flow
from flowfabric.errors import (
    DependencyAlreadyExists,
    DownstreamTerminal,
    ExecutionNotEligible,
    FlowAlreadyTerminal,
    GraphTooLargeForCycleCheck,
)
from flowfabric.operations.flows import EdgeAlreadyApplied
from tests.conformance.driver import Driver, refused, unfenced
from tests.conformance.editing import LATER, EditedFlow, new_flow
from tests.conformance.graphs import Graph, Member

SEARCHED = 1_000


async def test_a_final_downstream_comes_before_a_second_edge(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b")
    await flow.stage("a", "b")
    await driver.engine.outcomes.cancel(unfenced(flow.ids["b"]), "enough")
    with refused(DownstreamTerminal):
        await flow.stage("a", "b", edge_id=str(uuid4()))


async def wide(driver: Driver, below: int) -> EditedFlow:
    """A member with so many below it, and one that no edge leads to or from."""
    graph = Graph(
        arrows=[("top", f"t{i}") for i in range(below)],
        members={"above": Member(delay_until=LATER)},
    )
    made = await driver.graph(graph)
    flow = EditedFlow(driver.engine, made.flow_id)
    flow.ids = dict(made.ids)
    return flow


async def test_a_thousand_members_are_searched(driver: Driver) -> None:
    flow = await wide(driver, SEARCHED - 1)
    await flow.stage("above", "top")
    assert (await flow.flow()).edge_count == SEARCHED


async def test_a_second_edge_comes_before_a_graph_too_large_to_search(driver: Driver) -> None:
    flow = await wide(driver, SEARCHED - 1)
    await flow.stage("above", "top")
    await flow.add("one more", delay_until=LATER)
    await flow.stage("top", "one more")
    with refused(DependencyAlreadyExists):
        await flow.stage("above", "top", edge_id=str(uuid4()))
    await flow.add("another", delay_until=LATER)
    with refused(GraphTooLargeForCycleCheck):
        await flow.stage("another", "top")


async def test_a_cancelled_flow_comes_before_a_member_that_runs(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a")
    await flow.add("b")
    await flow.stage("a", "b")
    await flow.take("b")
    with refused(ExecutionNotEligible):
        await flow.apply("a", "b")
    await driver.engine.flow_operators.cancel_flow(flow.flow_id, "flow_only")
    with refused(FlowAlreadyTerminal):
        await flow.apply("a", "b")


async def test_an_applied_edge_of_a_cancelled_flow_is_applied_already(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b")
    await flow.join("a", "b")
    await driver.engine.flow_operators.cancel_flow(flow.flow_id, "flow_only")
    assert await flow.apply("a", "b") == EdgeAlreadyApplied()


async def blocked_member(driver: Driver, flow: EditedFlow, why: str) -> None:
    """A member `b` that is held back, and an edge to it that is staged."""
    own = for_flow(driver.engine.deps.counts, flow.flow_id, str(uuid4()))
    flow.ids["b"] = await driver.submit(execution_id=own, flow_id=flow.flow_id)
    await driver.engine.scheduling.block(own, why)
    await flow.stage("a", "b")


@pytest.mark.parametrize("why", ["paused_by_operator", "paused_by_policy"])
async def test_an_edge_does_not_free_what_somebody_holds_back(driver: Driver, why: str) -> None:
    flow = await new_flow(driver.engine, "a")
    await blocked_member(driver, flow, why)
    with refused(ExecutionNotEligible):
        await flow.apply("a", "b")
    assert (await flow.record("b")).state == "blocked"


LIMITS = ["waiting_for_budget", "waiting_for_quota", "waiting_for_capable_worker"]


@pytest.mark.parametrize("why", LIMITS)
async def test_the_next_look_at_a_limit_is_no_delay_to_remember(driver: Driver, why: str) -> None:
    flow = await new_flow(driver.engine)
    await flow.add("a")
    await blocked_member(driver, flow, why)
    assert (await flow.record("b")).wake_at > driver.clock()
    await flow.apply("a", "b")
    record = await flow.record("b")
    assert (record.reason, record.wake_at) == ("dependencies", 0)
    await flow.complete("a")
    assert (await flow.record("b")).state == "waiting"
