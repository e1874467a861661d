"""Replaying a part of a flow, in order, and members whose graph moves while they are replayed."""

import asyncio
from typing import Any

import pytest

from flowfabric.errors import (
    ExecutionNotFound,
    ExecutionNotInFlow,
    ExecutionNotTerminal,
    FlowAlreadyTerminal,
    FlowNotFound,
    InvalidInput,
    MaxReplaysExhausted,
)
from flowfabric.operations.flows import FlowReplayed, Flows, ReplayedMember
from tests.conformance.driver import Driver, refused, stranger, unfenced
from tests.conformance.editing import LATER, new_flow, upstream
from tests.conformance.graphs import Arrow, FlowUnderTest, Graph, Member, chain
from tests.proofs import proves

DIAMOND = Graph(arrows=[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "e")])


async def replay(
    driver: Driver, flow: FlowUnderTest, *names: str, **fields: Any
) -> list[ReplayedMember]:
    named = [flow.ids[name] for name in names] if names else None
    return (await driver.engine.flow_operators.replay_flow(flow.flow_id, named, **fields)).items


def by_name(flow: FlowUnderTest, items: list[ReplayedMember]) -> list[tuple[str, str]]:
    names = {own: name for name, own in flow.ids.items()}
    return [(names[item.execution_id], item.public_state) for item in items]


@proves(Flows.replay_flow)
async def test_what_failed_and_what_was_skipped_for_it_runs_again(driver: Driver) -> None:
    flow = await driver.graph(DIAMOND)
    await flow.complete("a", "b")
    await flow.fail("c")
    assert (await flow.states())["e"] == "skipped"
    driver.clock.advance(5)
    items = await replay(driver, flow, reason="again", requested_by="ada")
    assert by_name(flow, items) == [
        ("c", "waiting"),
        ("d", "waiting_children"),
        ("e", "waiting_children"),
    ]
    for name in "cde":
        record = await flow.record(name)
        assert (record.replay_reason, record.replay_requested_by) == ("again", "ada")
    await flow.complete("c", "d", "e")
    stored = await flow.flow()
    assert (stored.counts, stored.finished_at) == ({"completed": 5}, driver.clock())
    assert (await flow.record("d")).attempt_type == "replay"


async def test_members_come_behind_those_they_depend_on(driver: Driver) -> None:
    arrows = [(f"n{i}", f"n{j}") for i in range(6) for j in range(i + 1, 6)]
    flow = await driver.graph(Graph(arrows=arrows))
    await flow.fail("n0")
    items = by_name(flow, await replay(driver, flow))
    assert [name for name, _ in items] == [f"n{i}" for i in range(6)]


async def test_a_named_member_takes_its_skipped_descendants_along(driver: Driver) -> None:
    flow = await driver.graph(Graph(arrows=[("a", "b"), ("b", "c"), ("x", "y"), ("y", "z")]))
    await flow.fail("a", "x")
    items = await replay(driver, flow, "a")
    assert [name for name, _ in by_name(flow, items)] == ["a", "b", "c"]
    states = await flow.states()
    assert (states["x"], states["y"], states["z"]) == ("failed", "skipped", "skipped")


async def test_a_completed_member_may_be_named_too(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    await flow.complete("a", "b")
    assert by_name(flow, await replay(driver, flow, "a")) == [("a", "waiting")]
    assert (await flow.states())["b"] == "completed"


async def test_nothing_to_replay_is_an_empty_answer(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    assert await replay(driver, flow) == []
    assert await driver.engine.flow_operators.replay_flow(flow.flow_id, []) == FlowReplayed(
        flow.flow_id, []
    )


async def test_each_member_has_its_own_answer(driver: Driver) -> None:
    graph = Graph(
        arrows=[("a", "b")],
        members={"a": Member(policy={"max_replay_count": 0}), "live": Member()},
    )
    flow = await driver.graph(graph)
    other = await driver.submit()
    await flow.fail("a")
    missing = flow.ids["a"][:-12] + "000000000000"
    named = [flow.ids["a"], flow.ids["live"], other, missing]
    items = (await driver.engine.flow_operators.replay_flow(flow.flow_id, named)).items
    errors = {item.execution_id: type(item.fault) for item in items}
    assert errors == {
        flow.ids["a"]: MaxReplaysExhausted,
        flow.ids["live"]: ExecutionNotTerminal,
        other: ExecutionNotInFlow,
        missing: ExecutionNotFound,
        flow.ids["b"]: type(None),
    }


async def test_a_repeat_after_a_crash_finishes_the_replay(driver: Driver) -> None:
    """Only the first members were replayed before the caller died: asking again does the rest."""
    for named in ((), ("a",)):
        flow = await driver.graph(chain("a", "b", "c"))
        await flow.fail("a")
        await driver.engine.operators.replay(flow.ids["a"])
        await replay(driver, flow, *named)
        assert await flow.states() == {"a": "waiting", "b": "blocked", "c": "blocked"}


async def test_a_cancelled_flow_is_not_replayed(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    await flow.fail("a")
    await driver.engine.flow_operators.cancel_flow(flow.flow_id, "flow_only")
    with refused(FlowAlreadyTerminal):
        await replay(driver, flow)
    assert await flow.states() == {"a": "failed", "b": "skipped"}


@pytest.mark.parametrize("ids", ["x", ["x"], [7], {"a": 1}])
async def test_malformed_ids_are_refused(driver: Driver, ids: Any) -> None:
    flow = await driver.graph(chain("a", "b"))
    with refused(InvalidInput):
        await driver.engine.flow_operators.replay_flow(flow.flow_id, ids)
    with refused(FlowNotFound):
        await driver.engine.flow_operators.replay_flow(stranger())


async def test_a_whole_flow_that_was_cut_runs_again(driver: Driver) -> None:
    groups = {"t": {"policy": "any_of", "k": 1, "on_satisfied": "cancel_remaining"}}
    flow = await driver.graph(Graph(arrows=[("a", "t"), ("b", "t")], groups=groups))
    await flow.complete("a")
    assert (await flow.states())["b"] == "cancelled"
    assert by_name(flow, await replay(driver, flow)) == [("b", "waiting")]
    await flow.complete("b")
    assert (await flow.group("t")).succeeded == 1, "its edge was resolved before"


# ---- the graph moves between the reading and the step


async def test_an_upstream_that_ends_meanwhile_is_not_forgotten(driver: Driver) -> None:
    """Its outcome moves the counters of the group that the replay is about to write."""
    flow = await driver.graph(Graph(arrows=[("a", "t"), ("b", "t")]))
    running = await flow.take("b")
    await flow.fail("a")
    assert (await flow.states())["t"] == "skipped"
    store = driver.engine.deps.store
    apply, raced = store.apply, False

    async def late(plan: Any) -> Any:
        nonlocal raced
        if plan.rule == "replay" and not raced:
            raced = True
            await driver.engine.outcomes.complete(running.proof)
        return await apply(plan)

    store.apply = late  # type: ignore[method-assign, assignment]
    assert (await driver.engine.operators.replay(flow.ids["t"])).public_state == "waiting_children"
    store.apply = apply  # type: ignore[method-assign]
    group = await flow.group("t")
    assert (group.succeeded, group.n, group.state) == (1, 2, "pending")
    await driver.engine.operators.replay(flow.ids["a"])
    await flow.complete("a")
    assert (await flow.record("t")).state == "waiting"


async def test_a_cancel_that_comes_between_wins(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    await flow.fail("a")
    store = driver.engine.deps.store
    apply = store.apply

    async def late(plan: Any) -> Any:
        if plan.rule == "replay":
            await driver.engine.flow_operators.cancel_flow(flow.flow_id, "flow_only")
        return await apply(plan)

    store.apply = late  # type: ignore[method-assign, assignment]
    with refused(FlowAlreadyTerminal):
        await driver.engine.operators.replay(flow.ids["a"])
    store.apply = apply  # type: ignore[method-assign]
    assert (await flow.record("a")).state == "failed"


async def test_concurrent_replays_of_the_same_members_replay_each_once(driver: Driver) -> None:
    flow = await driver.graph(DIAMOND)
    await flow.fail("a")
    answers = await asyncio.gather(*(replay(driver, flow) for _ in range(3)))
    replayed = [item.execution_id for items in answers for item in items if item.error is None]
    assert sorted(replayed) == sorted(flow.ids.values())
    for name in "abcde":
        assert (await flow.record(name)).replay_count == 1


async def test_data_is_passed_again_after_a_replay(driver: Driver) -> None:
    arrows = [Arrow("a", "c", "input"), Arrow("b", "c", "named")]
    flow = await driver.graph(Graph(arrows=arrows, members={"c": Member(input=b"original")}))
    await flow.complete("b", result=b"B")
    await flow.fail("a")
    await replay(driver, flow)
    await flow.complete("a", result=b"A")
    assert await flow.input("c") == b"A"
    found = await upstream(driver.engine, flow.ids["c"], "named")
    assert found is not None
    assert found.result == b"B"
    await driver.engine.outcomes.cancel(unfenced(flow.ids["c"]), "enough")


async def test_a_member_skipped_for_want_of_edges_is_released_by_a_replay(driver: Driver) -> None:
    """Its quorum asks for more than there is; a replay waits for nothing that could come."""
    groups = {"t": {"policy": "quorum", "k": 3, "on_satisfied": "let_run"}}
    flow = await driver.graph(Graph(arrows=[("a", "t"), ("b", "t")], groups=groups))
    await flow.complete("a", "b")
    assert (await flow.record("t")).state == "skipped"
    assert (await driver.engine.operators.replay(flow.ids["t"])).public_state == "waiting"
    await flow.complete("t")


# ---- replay beside a cascade that was cut off


def die(driver: Driver) -> None:
    """From now on nobody goes on with what a step leaves over, only the flow's timer."""
    driver.engine.deps.on_more = lambda *_: None


async def test_an_end_before_the_replay_that_is_settled_late_does_not_count(
    driver: Driver,
) -> None:
    """The failed source has not reached the edge yet when its target is replayed."""
    arrows = [("a", f"t{i:03}") for i in range(150)]
    flow = await driver.graph(Graph(arrows=[*arrows, ("b", "t149")]))
    die(driver)
    await flow.fail("b", "a")
    edges = await flow.edges_into("t149")
    assert (edges["a"].state, edges["b"].state) == ("open", "impossible")
    assert (
        await driver.engine.operators.replay(flow.ids["t149"])
    ).public_state == "waiting_children"
    assert (await flow.record("t149")).detail == "2 dep(s) unsatisfied after replay"
    await driver.sweep()
    assert (await flow.flow()).counts == {"failed": 2, "skipped": 149, "waiting_children": 1}
    await driver.engine.operators.replay(flow.ids["a"])
    await driver.engine.operators.replay(flow.ids["b"])
    await flow.complete("a", "b")
    await driver.sweep()
    assert (await flow.record("t149")).state == "waiting"


async def test_a_source_that_ends_again_beside_its_own_cut_off_end(driver: Driver) -> None:
    """What is left of the first end must not settle what was reopened after the second."""
    arrows = [("a", f"t{i:03}") for i in range(250)]
    flow = await driver.graph(Graph(arrows=arrows))
    die(driver)
    for _ in range(2):
        await flow.fail("a")
        await driver.engine.operators.replay(flow.ids["a"])
    await flow.fail("a")
    assert (
        await driver.engine.operators.replay(flow.ids["t005"])
    ).public_state == "waiting_children"
    await driver.sweep()
    assert (await flow.flow()).counts == {"failed": 1, "skipped": 249, "waiting_children": 1}


@pytest.mark.parametrize("replayed", [True, False])
@pytest.mark.parametrize("outcome", ["completed", "failed"])
async def test_a_new_edge_does_not_settle_what_a_replay_reopened(
    driver: Driver, outcome: str, replayed: bool
) -> None:
    flow = await new_flow(driver.engine)
    await flow.add("a", "x")
    await flow.add("t", delay_until=LATER)
    await flow.join("a", "t")
    await flow.fail("a")
    await driver.engine.operators.replay(flow.ids["t"])
    if replayed:
        await driver.engine.operators.replay(flow.ids["a"])
    await flow.join("x", "t")
    edges = await flow.edges_into("t")
    assert (edges["a"].state, edges["x"].state) == ("open", "open")
    assert (await flow.record("t")).state == "blocked"
    if not replayed:
        await driver.engine.operators.replay(flow.ids["a"])
    await (flow.complete("a", "x") if outcome == "completed" else flow.fail("a"))
    expected = "waiting" if outcome == "completed" else "skipped"
    assert (await flow.record("t")).state == expected


@pytest.mark.parametrize("policy", [{}, {"policy": "quorum", "k": 200, "on_satisfied": "let_run"}])
@pytest.mark.parametrize("finisher", ["alive", "dead"])
async def test_more_successes_than_a_step_settles_release_a_replayed_member(
    driver: Driver, policy: dict[str, Any], finisher: str
) -> None:
    sources = [f"s{i:03}" for i in range(150)]
    flow = await driver.graph(Graph(arrows=[(one, "t") for one in sources], groups={"t": policy}))
    await flow.fail(*sources)
    assert (await flow.record("t")).state == "skipped"
    for name in sources:
        await driver.engine.operators.replay(flow.ids[name])
    await flow.complete(*sources)
    if finisher == "dead":
        die(driver)
    assert (await driver.engine.operators.replay(flow.ids["t"])).public_state == "waiting_children"
    await (flow.settled() if finisher == "alive" else driver.sweep())
    group = await flow.group("t")
    assert (group.succeeded, group.state) == (150, "satisfied")
    assert (await flow.record("t")).state == "waiting"
    assert (await flow.flow()).unsettled == ()
