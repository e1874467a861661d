"""A flow's counters and public state follow from its members, and so does its end."""

import pytest

from flowfabric.core.graph import flow_state
from tests.conformance.driver import Driver, unfenced
from tests.conformance.editing import LATER, EditedFlow, new_flow
from tests.conformance.graphs import Graph, Member, chain, quorum
from tests.moves import act_if_due


async def make(driver: Driver, flow: EditedFlow, state: str) -> None:
    """Add a member and bring it into a public state."""
    name = f"{state}-{len(flow.ids)}"
    fields = {"delay_until": LATER} if state == "delayed" else {}
    if state == "expired":
        fields = {"deadline_at": driver.clock()}
    await flow.add(name, **fields)
    own = flow.ids[name]
    match state:
        case "active":
            await flow.take(name)
        case "suspended":
            await driver.suspend((await flow.take(name)).proof)
        case "rate_limited":
            await driver.engine.scheduling.block(own, "waiting_for_quota")
        case "completed":
            await flow.complete(name)
        case "failed":
            await flow.fail(name)
        case "cancelled":
            await driver.engine.outcomes.cancel(unfenced(own), "enough")
        case "expired":
            await act_if_due(driver.engine, own)


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        ([], "open"),
        (["waiting"], "open"),
        (["waiting", "failed"], "open"),
        (["active", "suspended", "delayed", "rate_limited"], "running"),
        (["active", "failed"], "running"),
        (["suspended", "waiting"], "blocked"),
        (["delayed", "completed"], "blocked"),
        (["rate_limited", "waiting"], "blocked"),
        (["completed", "completed"], "completed"),
        (["completed", "failed"], "failed"),
        (["completed", "cancelled"], "failed"),
        (["completed", "expired"], "failed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "+".join(value) or "empty",
)
async def test_a_flow_is_what_its_members_make_it(
    driver: Driver, states: list[str], shown: str
) -> None:
    flow = await new_flow(driver.engine)
    for state in states:
        await make(driver, flow, state)
    found = await driver.engine.flow_reads.describe_flow(flow.flow_id)
    assert found.public_flow_state == shown
    counted = {name: n for name, n in found.members.items() if n}
    assert counted == {state: states.count(state) for state in states}
    ends = [entry.details for entry in await driver.events("flow") if entry.kind == "finished"]
    is_over = shown in ("completed", "failed")
    # With members added one by one it may have ended more than once.
    assert (ends[-1] if ends and is_over else None) == ({"state": shown} if is_over else None)


async def test_a_flow_of_members_that_wait_for_each_other_is_blocked(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    assert flow_state(await flow.flow()) == "blocked"
    await flow.complete("a")
    assert flow_state(await flow.flow()) == "open"


async def test_a_skipped_member_alone_does_not_fail_a_flow(driver: Driver) -> None:
    """It wanted two successes, and only one edge ever led to it."""
    graph = Graph(arrows=[("a", "b")], groups={"b": quorum(2, "let_run")})
    flow = await driver.graph(graph)
    await flow.complete("a")
    assert (await flow.flow()).counts == {"completed": 1, "skipped": 1}
    assert flow_state(await flow.flow()) == "completed"


async def test_a_cancelled_flow_is_cancelled_whatever_its_members_are(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    await make(driver, flow, "active")
    await driver.engine.flow_operators.cancel_flow(flow.flow_id, "flow_only")
    assert flow_state(await flow.flow()) == "cancelled"


async def test_a_flow_counts_its_members_by_public_state(driver: Driver) -> None:
    members = {name: Member() for name in "abcdefg"}
    members["delayed"] = Member(delay_until=driver.clock() + 1)
    flow = await driver.graph(Graph(arrows=[("a", "child")], members=members))
    await flow.take("b")
    lost = (await flow.take("c")).proof
    await driver.engine.leases.revoke_lease(lost.execution_id)
    await driver.suspend((await flow.take("d")).proof)
    await driver.engine.scheduling.block(flow.ids["e"], "waiting_for_budget")
    await driver.engine.scheduling.block(flow.ids["f"], "paused_by_operator")
    await flow.fail("g")
    stored = await flow.flow()
    assert stored.counts == {
        "waiting": 2,
        "waiting_children": 1,
        "active": 2,
        "suspended": 1,
        "rate_limited": 1,
        "failed": 1,
        "delayed": 1,
    }
    assert (stored.node_count, stored.edge_count) == (9, 1)


async def test_a_flow_finishes_once_with_its_last_member(driver: Driver) -> None:
    flow = await driver.graph(Graph(arrows=[("a", "b")], flow={"tags": {"app.team": "red"}}))
    await flow.complete("a")
    assert await driver.events("flow") == []
    driver.clock.advance(50)
    await flow.complete("b")
    (event,) = await driver.events("flow")
    assert (event.kind, event.flow_id, event.at) == ("finished", flow.flow_id, driver.clock())
    assert (event.details, event.tags) == ({"state": "completed"}, {"app.team": "red"})
    stored = await flow.flow()
    assert (stored.finished_at, stored.purge_at) == (
        driver.clock(),
        driver.clock() + stored.retention_ms,
    )
