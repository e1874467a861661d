"""Staging and applying edges: the order of checks, cycles, repeats, and what an edge does."""

import asyncio
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from flowfabric.core.ids import for_flow
from flowfabric.errors import (
    CycleDetected,
    DependencyAlreadyExists,
    DownstreamTerminal,
    ExecutionAlreadyInFlow,
    ExecutionNotEligible,
    ExecutionNotFound,
    ExecutionNotInFlow,
    FlowAlreadyTerminal,
    FlowNotFound,
    GraphTooLargeForCycleCheck,
    InvalidDependency,
    InvalidInput,
    SelfReferencingEdge,
    StaleGraphRevision,
)
from flowfabric.operations.executions import GrantOrder
from flowfabric.operations.flows import (
    EdgeAlreadyApplied,
    EdgeApplied,
    EdgeStaged,
    Flows,
    NewEdgePolicy,
    StagedEdge,
)
from tests.conformance.driver import Driver, refused, unfenced
from tests.conformance.editing import LATER, EditedFlow, new_flow
from tests.conformance.graphs import Graph, Member
from tests.proofs import proves


async def stored(driver: Driver, flow: EditedFlow) -> object:
    """All a refused edit must leave alone."""
    page = await driver.engine.flow_reads.list_edges(flow.flow_id, limit=1_000)
    return await driver.snapshot(), await flow.flow(), page.items


# ---- staging


async def test_a_staged_edge_is_there_and_holds_nobody_back(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b")
    before = await driver.record(flow.ids["b"])
    staged = await flow.stage("a", "b", dependency_kind="data", data_passing_ref="report")
    assert staged == EdgeStaged(flow.edges["a>b"], 3)
    after = await flow.flow()
    assert (after.graph_revision, after.edge_count, after.node_count) == (3, 1, 2)
    assert await driver.record(flow.ids["b"]) == before
    group = await flow.group("b")
    assert (group.n, group.staged, group.state) == (0, 1, "pending")
    edge = await driver.engine.flow_reads.describe_edge(flow.flow_id, staged.edge_id)
    assert edge is not None
    assert (edge.edge_state, edge.dependency_kind) == ("staged", "data")
    assert (edge.data_passing_ref, edge.created_at) == ("report", driver.clock())


async def test_a_repeated_stage_answers_as_before(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b", "c")
    revision = await flow.revision()
    edge = flow.new_edge("a", "b")
    first = await flow.put(edge, revision)
    before = await stored(driver, flow)
    again = await flow.put(edge, revision)
    assert again == first
    assert await stored(driver, flow) == before
    await flow.stage("b", "c")
    later = await flow.put(edge, revision)
    assert later == EdgeStaged(edge.edge_id, revision + 2), "with the revision as it is now"


@pytest.mark.parametrize(
    "change", [{"dependency_kind": "other"}, {"data_passing_ref": "x"}, {"upstream": "c"}]
)
async def test_an_edge_id_with_other_content_is_refused(
    driver: Driver, change: dict[str, str]
) -> None:
    flow = await new_flow(driver.engine, "a", "b", "c")
    edge = flow.new_edge("a", "b")
    await flow.put(edge, 3)
    before = await stored(driver, flow)
    values = {name: flow.ids.get(value, value) for name, value in change.items()}
    with refused(DependencyAlreadyExists) as caught:
        changed = msgspec.structs.replace(edge, **values)
        await flow.put(changed, 4)
    assert caught.value.details["edge_id"] == edge.edge_id
    assert caught.value.details["upstream_execution_id"] == flow.ids["a"]
    assert await stored(driver, flow) == before


async def test_a_stale_revision_is_refused_and_the_fresh_one_works(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b")
    edge = flow.new_edge("a", "b")
    for stale in (0, 1, 3):
        with refused(StaleGraphRevision) as caught:
            await flow.put(edge, stale)
        assert caught.value.retryable
        assert caught.value.details["graph_revision"] == 2
    await flow.put(edge, 2)


async def test_of_concurrent_edits_one_revision_lets_one_through(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b", "c", "d")
    edges = [flow.new_edge(*ends) for ends in (("a", "b"), ("a", "c"), ("a", "d"))]
    stage = flow.put
    answers = await asyncio.gather(*(stage(edge, 4) for edge in edges), return_exceptions=True)
    kinds = sorted(type(answer).__name__ for answer in answers)
    assert kinds == ["EdgeStaged", "StaleGraphRevision", "StaleGraphRevision"]
    assert (await flow.flow()).edge_count == 1


async def test_edges_come_from_members_and_lead_to_members(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b")
    counts = driver.engine.deps.counts
    alone = await driver.submit(execution_id=for_flow(counts, flow.flow_id, str(uuid4())))
    for stranger in (alone, for_flow(counts, flow.flow_id, str(uuid4())), await driver.submit()):
        flow.ids["x"] = stranger
        with refused(ExecutionNotInFlow) as caught:
            await flow.stage("x", "b")
        assert stranger in caught.value.detail
        with refused(ExecutionNotInFlow):
            await flow.stage("a", "x")
    flow.ids |= {"x": alone, "y": await driver.submit()}
    with refused(ExecutionNotInFlow) as caught:
        await flow.stage("x", "y")
    assert alone in caught.value.detail, "the upstream comes first"


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
async def test_a_final_downstream_takes_no_edge(driver: Driver, end: str) -> None:
    flow = await new_flow(driver.engine, "a")
    await flow.add("b")
    match end:
        case "complete":
            await flow.complete("b")
        case "fail":
            await flow.fail("b")
        case _:
            await driver.engine.outcomes.cancel(unfenced(flow.ids["b"]), "enough")
    with refused(DownstreamTerminal):
        await flow.stage("a", "b")
    await flow.stage("b", "a")


async def test_a_second_edge_between_two_members_is_refused(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b")
    first = await flow.stage("a", "b")
    with refused(DependencyAlreadyExists) as caught:
        await flow.stage("a", "b", edge_id=str(uuid4()), data_passing_ref="other")
    assert caught.value.details["edge_id"] == first.edge_id
    assert (await flow.flow()).edge_count == 1


async def test_cycles_are_refused(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b", "c")
    with refused(SelfReferencingEdge):
        await flow.stage("a", "a")
    await flow.stage("a", "b")
    with refused(CycleDetected):
        await flow.stage("b", "a")
    await flow.join("b", "c")
    with refused(CycleDetected):
        await flow.stage("c", "a")
    assert (await flow.flow()).edge_count == 2


async def test_a_graph_too_large_to_search_is_refused(driver: Driver) -> None:
    wide = await driver.graph(
        Graph(
            arrows=[("top", f"t{i}") for i in range(1_000)],
            members={"above": Member(delay_until=LATER)},
        )
    )
    flow = EditedFlow(driver.engine, wide.flow_id)
    flow.ids = dict(wide.ids)
    await flow.stage("above", "t7")
    with refused(GraphTooLargeForCycleCheck):
        await flow.stage("above", "top")


@proves(Flows.stage_edge)
async def test_the_order_of_the_checks(driver: Driver) -> None:
    """Everything is wrong at once, and is put right from the first check to the last."""
    flow = await new_flow(driver.engine, "a", "b")
    await flow.join("a", "b")
    stage = flow.put
    nowhere, outsider = str(uuid4()), await driver.submit()
    edge = flow.new_edge("b", "b", edge_id=flow.edges["a>b"])
    with refused(SelfReferencingEdge):
        await driver.engine.flows.stage_edge(nowhere, edge)
    edge = msgspec.structs.replace(edge, upstream=outsider)
    with refused(FlowNotFound):
        await driver.engine.flows.stage_edge(nowhere, edge)
    with refused(DependencyAlreadyExists):
        await stage(edge, 0)
    edge = msgspec.structs.replace(edge, edge_id=str(uuid4()))
    with refused(StaleGraphRevision):
        await stage(edge, 0)
    with refused(ExecutionNotInFlow):
        await stage(edge, 3)
    edge = msgspec.structs.replace(edge, upstream=flow.ids["b"], downstream=flow.ids["a"])
    await driver.engine.outcomes.cancel(unfenced(flow.ids["a"]), "enough")
    with refused(DownstreamTerminal):
        await stage(edge, 3)
    await driver.engine.flow_operators.cancel_flow(flow.flow_id, "flow_only")
    with refused(FlowAlreadyTerminal):
        await stage(edge, 0)


async def test_a_pair_comes_before_a_cycle(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b", "c")
    await flow.stage("a", "b")
    await flow.stage("b", "c")
    with refused(DependencyAlreadyExists):
        await flow.stage("a", "b", edge_id=str(uuid4()))
    with refused(CycleDetected):
        await flow.stage("c", "a")


@pytest.mark.parametrize(
    "change",
    [
        {"flow_id": "x"},
        {"edge_id": "x"},
        {"upstream": "x"},
        {"downstream": "x"},
        {"dependency_kind": ""},
        {"dependency_kind": "k" * 129},
        {"dependency_kind": "a\nb"},
        {"data_passing_ref": "r" * 129},
        {"data_passing_ref": "a\x00b"},
        {"data_passing_ref": "a\x1fb"},
        {"data_passing_ref": 7},
    ],
)
async def test_a_malformed_edge_is_refused_before_the_store_is_asked(
    driver: Driver, change: dict[str, Any]
) -> None:
    flow = await new_flow(driver.engine, "a", "b")
    changed = dict(change)
    own = changed.pop("flow_id", flow.flow_id)
    edge = msgspec.structs.replace(flow.new_edge("a", "b"), **changed)
    for revision in (2, -1, "2", None):
        with refused(InvalidInput):
            new = msgspec.structs.replace(edge, expected_graph_revision=revision)
            await driver.engine.flows.stage_edge(own, new)


# ---- applying


@proves(Flows.apply_edge)
async def test_an_applied_edge_holds_its_downstream_back(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "c")
    await flow.add("b")
    await flow.stage("a", "b")
    assert await flow.apply("a", "b") == EdgeApplied(1)
    record = await flow.record("b")
    assert (record.state, record.reason, record.next) == ("blocked", "dependencies", "first")
    assert record.detail == f"1 dep(s) unresolved incl {flow.edges['a>b']}"
    info = await driver.engine.reads.describe_execution(flow.ids["b"])
    assert info.public_state == "waiting_children"
    assert await driver.claim_all(n=10) == []
    await flow.stage("c", "b")
    assert await flow.apply("c", "b") == EdgeApplied(2)
    record = await flow.record("b")
    assert record.detail == f"2 dep(s) unresolved incl {flow.edges['c>b']}"
    assert (await flow.flow()).counts == {"delayed": 2, "waiting_children": 1}


async def test_applying_again_changes_nothing(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b")
    await flow.join("a", "b")
    before = await stored(driver, flow)
    assert await flow.apply("a", "b") == EdgeAlreadyApplied()
    await driver.engine.flow_operators.cancel_flow(flow.flow_id, "flow_only")
    assert await flow.apply("a", "b") == EdgeAlreadyApplied(), "even in a cancelled flow"
    assert (await stored(driver, flow))[2] == before[2]  # type: ignore[index]


async def test_two_that_apply_one_edge_count_it_once(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b")
    await flow.stage("a", "b")
    answers = await asyncio.gather(*(flow.apply("a", "b") for _ in range(4)))
    assert answers.count(EdgeApplied(1)) == 1
    assert answers.count(EdgeAlreadyApplied()) == 3
    assert (await flow.group("b")).n == 1


@pytest.mark.parametrize(
    ("end", "state", "unmet"), [("complete", "delayed", 0), ("fail", "skipped", 1)]
)
async def test_an_upstream_that_has_ended_settles_the_edge_at_once(
    driver: Driver, end: str, state: str, unmet: int
) -> None:
    flow = await new_flow(driver.engine, "b")
    await flow.add("a")
    await flow.stage("a", "b")
    await (flow.complete("a") if end == "complete" else flow.fail("a"))
    assert await flow.apply("a", "b") == EdgeApplied(unmet)
    assert (await flow.record("b")).state == state, "a delay that lies ahead goes on"
    edge = (await flow.edges_into("b"))["a"]
    assert edge.state == ("satisfied" if end == "complete" else "impossible")
    assert edge.resolved_at == driver.clock()


async def test_the_result_of_an_upstream_that_has_ended_is_passed_on(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    await flow.add("a")
    await flow.add("b", input=b"original", delay_until=LATER)
    await flow.stage("a", "b", data_passing_ref="input")
    await flow.complete("a", result=b"fresh")
    await flow.apply("a", "b")
    assert await flow.input("b") == b"fresh"


NOT_RUNNABLE = (
    "active",
    "unmarked",
    "lease_expired",
    "lease_revoked",
    "suspended",
    "completed",
    "failed",
    "cancelled",
    "expired",
)


@pytest.mark.parametrize("situation", [*NOT_RUNNABLE, "blocked"])
async def test_a_late_edge_never_skips_running_or_held_work(driver: Driver, situation: str) -> None:
    flow = await new_flow(driver.engine, "a")
    counts = driver.engine.deps.counts
    execution_id = for_flow(counts, flow.flow_id, str(uuid4()))
    flow.ids["b"] = execution_id
    if situation in ("completed", "failed", "cancelled", "expired"):
        # Staged while it could be, applied when it was over.
        await driver.submit(execution_id=execution_id, flow_id=flow.flow_id, deadline_at=1)
        await flow.stage("a", "b")
        await _end(driver, flow, situation)
    else:
        await driver.reach(situation, execution_id=execution_id)
        await driver.engine.flows.add_member(flow.flow_id, execution_id)
        await flow.stage("a", "b")
    before = await stored(driver, flow)
    with refused(ExecutionNotEligible):
        await flow.apply("a", "b")
    with refused(ExecutionNotEligible):
        await flow.put(flow.new_edge("a", "b"), 0, apply=True)
    assert await stored(driver, flow) == before


async def _end(driver: Driver, flow: EditedFlow, situation: str) -> None:
    match situation:
        case "completed":
            await flow.complete("b")
        case "failed":
            await flow.fail("b")
        case "expired":
            await driver.engine.scheduling.expire(flow.ids["b"], "execution_deadline")
        case _:
            await driver.engine.outcomes.cancel(unfenced(flow.ids["b"]), "enough")


@pytest.mark.parametrize("situation", ["waiting", "delayed", "backoff", "paused", "handed_back"])
async def test_runnable_work_waits_for_an_edge_whatever_comes_next_for_it(
    driver: Driver, situation: str
) -> None:
    flow = await new_flow(driver.engine)
    await flow.add("a")
    execution_id = for_flow(driver.engine.deps.counts, flow.flow_id, str(uuid4()))
    await driver.reach(situation, execution_id=execution_id)
    await driver.engine.flows.add_member(flow.flow_id, execution_id)
    flow.ids["b"] = execution_id
    before = await driver.record(execution_id)
    await flow.join("a", "b")
    record = await driver.record(execution_id)
    assert (record.state, record.reason) == ("blocked", "dependencies")
    assert (record.next, record.wake_at) == (before.next, before.wake_at)
    assert record.attempt == before.attempt
    await flow.complete("a")
    record = await driver.record(execution_id)
    assert (record.next, record.wake_at) == (before.next, before.wake_at)
    assert record.state == ("delayed" if before.wake_at else "waiting")


async def test_a_reservation_ends_when_its_execution_must_wait(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a")
    await flow.add("b")
    order = GrantOrder(worker_id="w", worker_instance_id="w-1")
    await driver.engine.grants.issue(flow.ids["b"], order)
    await flow.join("a", "b")
    assert (await flow.record("b")).grant_id == ""


async def test_what_cannot_be_applied_is_refused_in_order(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b", "c")
    other = await new_flow(driver.engine, "x")
    await flow.stage("a", "b", data_passing_ref="r")
    own: dict[str, Any] = {"edge_id": flow.edges["a>b"], "downstream": flow.ids["b"]}
    missing = for_flow(driver.engine.deps.counts, flow.flow_id, str(uuid4()))
    before = await stored(driver, flow)

    async def apply(staged: StagedEdge) -> object:
        return await driver.engine.flows.apply_edge(flow.flow_id, staged)

    with refused(ExecutionNotFound):
        await apply(StagedEdge(**(own | {"downstream": missing, "edge_id": str(uuid4())})))
    with refused(ExecutionAlreadyInFlow):
        await apply(StagedEdge(**(own | {"downstream": other.ids["x"], "edge_id": str(uuid4())})))
    for wrong in (
        {"edge_id": str(uuid4())},
        {"downstream": flow.ids["c"]},
        {"upstream": flow.ids["c"]},
        {"dependency_kind": "other"},
        {"data_passing_ref": "other"},
        {"data_passing_ref": ""},
    ):
        with refused(InvalidDependency):
            await apply(StagedEdge(**(own | wrong)))
    with refused(InvalidInput):
        await apply(StagedEdge(**(own | {"edge_id": "x"})))
    assert await stored(driver, flow) == before
    agreeing = {"upstream": flow.ids["a"], "dependency_kind": "success_only"}
    assert await apply(StagedEdge(**(own | agreeing | {"data_passing_ref": "r"}))) == EdgeApplied(1)


async def test_an_edge_of_another_flow_is_no_edge_of_this_one(driver: Driver) -> None:
    flow, other = await new_flow(driver.engine, "a", "b"), await new_flow(driver.engine, "x", "y")
    await other.stage("x", "y")
    flow.edges["a>b"] = other.edges["x>y"]
    with refused(InvalidDependency):
        await flow.apply("a", "b")
    await flow.stage("a", "b")
    assert await flow.apply("a", "b") == EdgeApplied(1)
    reads, edge_id = driver.engine.flow_reads, other.edges["x>y"]
    mine = await reads.describe_edge(flow.flow_id, edge_id)
    theirs = await reads.describe_edge(other.flow_id, edge_id)
    assert mine is not None
    assert theirs is not None
    assert (mine.upstream_execution_id, mine.edge_state) == (flow.ids["a"], "open")
    assert (theirs.upstream_execution_id, theirs.edge_state) == (other.ids["x"], "staged")


async def test_a_cancelled_flow_applies_no_edges(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b")
    await flow.stage("a", "b")
    await driver.engine.flow_operators.cancel_flow(flow.flow_id, "flow_only")
    with refused(FlowAlreadyTerminal):
        await flow.apply("a", "b")


# ---- staged and applied in one step


async def test_an_edge_is_staged_and_applied_in_one_step(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a")
    await flow.add("b")
    edge = flow.new_edge("a", "b")
    answer = await flow.put(edge, 2, apply=True)
    assert answer == EdgeStaged(edge.edge_id, 3, 1)
    assert (await flow.record("b")).state == "blocked"
    stored_edge = (await flow.edges_into("b"))["a"]
    assert stored_edge.state == "open"
    group = await flow.group("b")
    assert (group.n, group.staged) == (1, 0)
    again = await flow.put(edge, 2, apply=True)
    assert again == answer


async def test_a_staged_edge_is_applied_by_a_repeat_that_asks_for_it(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b")
    edge = flow.new_edge("a", "b")
    await flow.put(edge, 2)
    answer = await flow.put(edge, 2, apply=True)
    assert answer == EdgeStaged(edge.edge_id, 3, 1)
    group = await flow.group("b")
    assert (group.n, group.staged) == (1, 0)


async def test_an_edge_to_running_work_is_not_even_staged_with_apply(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a")
    await flow.add("b")
    await flow.take("b")
    before = await stored(driver, flow)
    with refused(ExecutionNotEligible):
        await flow.put(flow.new_edge("a", "b"), 2, apply=True)
    assert await stored(driver, flow) == before


# ---- edges one by one


async def test_all_of_is_not_released_while_one_edge_is_only_staged(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "t", "b")
    await flow.add("a")
    await flow.join("a", "t")
    await flow.stage("b", "t")
    await flow.complete("a")
    assert (await flow.record("t")).state == "blocked"
    assert (await flow.group("t")).state == "pending"
    await flow.apply("b", "t")
    assert (await flow.record("t")).detail == f"1 dep(s) unresolved incl {flow.edges['b>t']}"
    await driver.engine.outcomes.cancel(unfenced(flow.ids["b"]), "enough")
    assert (await flow.record("t")).state == "skipped"


async def test_quorum_waits_for_an_edge_that_is_only_staged(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "t")
    await flow.add("a", "b")
    policy = NewEdgePolicy(kind="quorum", k=2, on_satisfied="let_run")
    await driver.engine.flows.set_edge_group_policy(flow.flow_id, flow.ids["t"], policy)
    await flow.join("a", "t")
    await flow.stage("b", "t")
    await flow.complete("a")
    assert (await flow.group("t")).state == "pending"
    await flow.complete("b")
    assert await flow.apply("b", "t") == EdgeApplied(0)
    assert (await flow.group("t")).state == "satisfied"
    assert (await flow.record("t")).state == "delayed"


async def test_a_satisfied_member_waits_again_for_one_more_edge(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    await flow.add("a", "b", "t")
    await flow.join("a", "t")
    await flow.complete("a")
    assert (await flow.record("t")).state == "waiting"
    await flow.join("b", "t")
    assert (await flow.record("t")).state == "blocked"
    await flow.complete("b")
    assert (await flow.record("t")).state == "waiting"
    await flow.complete("t")
    with refused(DownstreamTerminal):
        await flow.add("c")
        await flow.stage("c", "t")


async def test_a_graph_grows_while_it_runs(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    await flow.add("a")
    claimed = await flow.take("a")
    for name in ("b", "c"):
        await flow.add(name)
        await flow.join("a", name)
    await driver.engine.outcomes.complete(claimed.proof)
    assert await flow.states() == {"a": "completed", "b": "waiting", "c": "waiting"}
    await flow.complete("b", "c")
    assert (await flow.flow()).counts == {"completed": 3}


# ---- parking


async def test_a_parent_cannot_wait_for_a_child_that_waits_for_it(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    await flow.add("parent", "a", "b", "free")
    await flow.join("parent", "a")
    await flow.join("a", "b")
    held = (await flow.take("parent")).proof
    before = await stored(driver, flow)
    park = driver.engine.outcomes.wait_for_children
    for child in ("a", "b"):
        with refused(CycleDetected):
            await park(held, (flow.ids["free"], flow.ids[child]))
    assert await stored(driver, flow) == before
    await park(held, (flow.ids["free"],))
    await flow.complete("free")
    assert (await flow.record("parent")).state == "waiting"


async def test_a_child_that_waited_for_its_parent_once_may_be_waited_for(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    await flow.add("parent", "child")
    await flow.join("parent", "child")
    await flow.complete("parent")
    await driver.engine.operators.replay(flow.ids["parent"])
    held = (await flow.take("parent")).proof
    await driver.engine.outcomes.wait_for_children(held, (flow.ids["child"],))
    await flow.complete("child")
    assert (await flow.record("parent")).state == "waiting"


async def test_a_child_that_does_not_wait_for_its_parent_any_more_may_be_waited_for(
    driver: Driver,
) -> None:
    """An edge leads from the parent to each of them, and none of them is held back by it."""
    flow = await new_flow(driver.engine)
    await flow.add("parent", "quick")
    await flow.add("ended", "raced", delay_until=LATER)
    policy = NewEdgePolicy(kind="any_of", on_satisfied="let_run")
    await driver.engine.flows.set_edge_group_policy(flow.flow_id, flow.ids["raced"], policy)
    for source, target in (("quick", "raced"), ("parent", "raced"), ("parent", "ended")):
        await flow.join(source, target)
    await flow.complete("quick")
    await driver.engine.outcomes.cancel(unfenced(flow.ids["ended"]), "enough")
    edges = {**await flow.edges_into("raced"), **await flow.edges_into("ended")}
    assert edges["parent"].state == "open"
    held = (await flow.take("parent")).proof
    children = (flow.ids["raced"], flow.ids["ended"])
    await driver.engine.outcomes.wait_for_children(held, children)
    assert (await flow.record("parent")).state == "blocked"
    await driver.engine.outcomes.cancel(unfenced(flow.ids["raced"]), "enough")
    assert (await flow.record("parent")).state == "waiting"
