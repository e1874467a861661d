"""Submitting whole graphs: one step or chunks, what is refused, repeats, abandoned ones."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any, cast
from uuid import uuid4

import pytest

from flowfabric.backend.base import Backend
from flowfabric.core import new_execution
from flowfabric.core.graph import flow_state
from flowfabric.core.ids import for_flow, partition_of
from flowfabric.core.new_execution import Size
from flowfabric.engine.attempts import claims as claims_module
from flowfabric.engine.flows.graphs import flow_id_for
from flowfabric.errors import (
    Conflict,
    CycleDetected,
    DependencyAlreadyExists,
    ExecutionAlreadyInFlow,
    FlowAlreadyTerminal,
    FlowNotFound,
    InvalidCapabilities,
    InvalidInput,
    InvalidPolicyJson,
    LaneNotAccepting,
    PartitionMismatch,
    PayloadTooLarge,
    SelfReferencingEdge,
    TransportFault,
)
from flowfabric.operations.flows import (
    Flows,
    GraphEdge,
    GraphGroup,
    GraphNode,
    GraphSubmission,
    SubmittedGraph,
)
from tests.conformance.driver import Driver, refused, unfenced
from tests.conformance.feeds import SOON_S
from tests.conformance.graphs import FlowUnderTest
from tests.proofs import proves

MINUTE = 60_000
ANY_OF = {"kind": "any_of", "on_satisfied": "cancel_remaining"}


def named(name: str, **fields: Any) -> GraphNode:
    return GraphNode(name=name, kind="work", **fields)


def graph(*arrows: tuple[str, str], **fields: Any) -> GraphSubmission:
    """A graph by its arrows; members that have none are named in `alone`."""
    alone: Sequence[str] = fields.pop("alone", ())
    names = dict.fromkeys([*alone, *(name for arrow in arrows for name in arrow)])
    values: dict[str, Any] = {
        "nodes": tuple(named(name) for name in names),
        "edges": tuple(GraphEdge(source=source, target=target) for source, target in arrows),
    }
    return GraphSubmission(**(values | fields))


def chain(length: int, **fields: Any) -> GraphSubmission:
    return graph(*pairwise(f"n{i:03}" for i in range(length)), **fields)


async def submit(
    driver: Driver, asked: GraphSubmission, caller: str = ""
) -> tuple[SubmittedGraph, FlowUnderTest]:
    submitted = await driver.engine.graphs.submit_graph(asked, caller=caller)  # type: ignore[call-arg]
    return submitted, FlowUnderTest(driver.engine, submitted.flow_id, submitted.executions)


@asynccontextmanager
async def counted(backend: Backend, method: str) -> AsyncIterator[list[Any]]:
    """The items of all calls of one mechanism."""
    original, items = getattr(backend, method), []

    async def call(batch: Any) -> Any:
        items.extend(batch)
        return await original(batch)

    setattr(backend, method, call)
    yield items
    setattr(backend, method, original)


# ---- one step


@proves(Flows.submit_graph)
async def test_a_whole_graph_is_created_in_one_step(driver: Driver, backend: Backend) -> None:
    async with counted(backend, "create_graph") as calls:
        submitted, flow = await submit(driver, chain(10, flow_kind="etl"))
    assert len(calls) == 1
    assert (submitted.is_new, submitted.graph_revision) == (True, 19)
    stored = await flow.flow()
    assert (stored.kind, stored.node_count, stored.edge_count) == ("etl", 10, 9)
    assert stored.counts == {"waiting": 1, "waiting_children": 9}
    assert (stored.incomplete, stored.due_at) == (False, 0)
    homes = {partition_of(own) for own in submitted.executions.values()}
    assert homes == {driver.engine.deps.counts.of_flow(submitted.flow_id)}
    for name in sorted(submitted.executions):
        claimed = await driver.claim()
        assert claimed.execution_id == submitted.executions[name]
        await driver.engine.outcomes.complete(claimed.proof)
    assert flow_state(await flow.flow()) == "completed"


async def test_finishing_a_member_rings_its_childs_lane(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only a notification wakes it.
    monkeypatch.setattr(claims_module, "SAFETY_NET_S", 600.0)
    asked = graph(("a", "b"))
    nodes = (asked.nodes[0], named("b", lane="second"))
    submitted, _ = await submit(driver, GraphSubmission(nodes=nodes, edges=asked.edges))
    waiting = asyncio.create_task(driver.claim_all(lanes=("second",), wait_ms=30_000))
    claimed = await driver.claim()
    await driver.engine.outcomes.complete(claimed.proof)
    async with asyncio.timeout(SOON_S):
        (released,) = await waiting
    assert released.execution_id == submitted.executions["b"]


async def test_nodes_are_submitted_like_single_executions(driver: Driver) -> None:
    later = driver.clock() + 5_000
    node = GraphNode(
        name="a",
        lane="gpu",
        kind="train",
        input=b"data",
        payload_encoding="json",
        priority=7,
        policy={"retention_ms": 5, "max_reclaim_count": 2},
        tags={"app.team": "red"},
        delay_until=later,
        deadline_at=later + 1,
    )
    asked = GraphSubmission(nodes=(node,), tags={"app.case": 7})
    _, flow = await submit(driver, asked, caller="ada")
    record = await flow.record("a")
    assert (record.lane, record.kind, record.priority) == ("gpu", "train", 7)
    assert (record.state, record.wake_at, record.deadline_at) == ("delayed", later, later + 1)
    assert (record.retention_ms, record.max_reclaim_count) == (5, 2)
    assert (record.tags, record.creator) == ({"app.team": "red"}, "ada")
    assert (record.payload_encoding, await flow.input("a")) == ("json", b"data")
    assert (await flow.flow()).tags == {"app.case": "7"}
    await driver.engine.lanes.drain()
    lanes = (await driver.engine.lanes.list_lanes("default", "", 10)).items
    assert "gpu" in [one.lane_id for one in lanes]


async def test_a_delay_of_a_member_with_edges_is_remembered(driver: Driver) -> None:
    later = driver.clock() + 5_000
    nodes = (named("a"), named("b", delay_until=later))
    _, flow = await submit(
        driver, GraphSubmission(nodes=nodes, edges=(GraphEdge(source="a", target="b"),))
    )
    record = await flow.record("b")
    assert (record.state, record.reason, record.wake_at) == ("blocked", "dependencies", later)
    await flow.complete("a")
    assert (await flow.record("b")).state == "delayed"


async def test_policies_and_data_refs_hold_from_the_start(driver: Driver) -> None:
    edges = (
        GraphEdge(source="a", target="t", data_passing_ref="input"),
        GraphEdge(source="b", target="t", dependency_kind="data", edge_id=str(uuid4())),
    )
    asked = graph(("a", "t"), ("b", "t"), edges=edges, groups=(GraphGroup("t", ANY_OF),))
    _, flow = await submit(driver, asked)
    group = await flow.group("t")
    assert (group.policy, group.n, group.on_satisfied) == ("any_of", 2, "cancel_remaining")
    found = await flow.edges_into("t")
    assert found["b"].edge_id == edges[1].edge_id
    assert (found["b"].kind, found["a"].data_ref) == ("data", "input")
    await flow.complete("a", result=b"A")
    assert await flow.input("t") == b"A"
    assert (await flow.states())["b"] == "cancelled"


async def test_given_ids_are_used(driver: Driver) -> None:
    own = str(uuid4())
    member = for_flow(driver.engine.deps.counts, own, str(uuid4()))
    nodes = (
        named("a", execution_id=member),
        named("b"),
    )
    submitted, _ = await submit(driver, GraphSubmission(nodes=nodes, flow_id=own))
    assert (submitted.flow_id, submitted.executions["a"]) == (own, member)


async def test_members_are_claimed_in_the_order_they_were_given(driver: Driver) -> None:
    names = [f"m{i}" for i in (3, 1, 2, 9, 0)]
    submitted, _ = await submit(driver, graph(alone=names))
    claimed = await driver.claim_all(n=5)
    assert [one.execution_id for one in claimed] == [submitted.executions[name] for name in names]


async def test_requirements_of_nodes_are_registered(driver: Driver) -> None:
    policy = {"routing_requirements": {"required_capabilities": ["cuda"]}}
    await submit(driver, GraphSubmission(nodes=(named("a", policy=policy),)))
    assert await driver.claim_all() == []
    assert len(await driver.claim_all(capabilities=("cuda",))) == 1


# ---- what is refused


SHARED = str(uuid4())
BAD: list[tuple[Any, GraphSubmission]] = [
    (InvalidInput, GraphSubmission(nodes=())),
    (
        InvalidInput,
        graph(alone=["a"], nodes=(named("a"), named("a"))),
    ),
    (InvalidInput, GraphSubmission(nodes=(named(""),))),
    (InvalidInput, GraphSubmission(nodes=(named("a\x00"),))),
    (InvalidInput, graph(alone=["a"], edges=(GraphEdge(source="a", target="z"),))),
    (InvalidInput, graph(alone=["a"], edges=(GraphEdge(source="z", target="a"),))),
    (SelfReferencingEdge, graph(("a", "a"))),
    (DependencyAlreadyExists, graph(("a", "b"), ("a", "b"))),
    (CycleDetected, graph(("a", "b"), ("b", "a"))),
    (CycleDetected, graph(("x", "a"), ("a", "b"), ("b", "c"), ("c", "a"), ("c", "y"))),
    (InvalidInput, graph(("a", "b"), groups=(GraphGroup("a", ANY_OF),))),
    (InvalidInput, graph(("a", "b"), groups=(GraphGroup("z", ANY_OF),))),
    (InvalidInput, graph(("a", "b"), groups=(GraphGroup("b", ANY_OF), GraphGroup("b", ANY_OF)))),
    (InvalidInput, graph(("a", "b"), groups=(GraphGroup("b", {"kind": "quorum", "k": 0}),))),
    (InvalidInput, graph(("a", "b"), groups=(GraphGroup("b", cast(Any, None)),))),
    (InvalidInput, graph(("a", "b"), namespace="a b")),
    (InvalidInput, graph(("a", "b"), flow_id="x")),
    (InvalidInput, graph(("a", "b"), flow_id=str(uuid4()), idempotency_key="k")),
    (InvalidInput, graph(("a", "b"), idempotency_key="k" * 1025)),
    (InvalidInput, graph(("a", "b"), flow_kind="k" * 1025)),
    (
        InvalidInput,
        graph(alone="ab", edges=(GraphEdge(source="a", target="b", dependency_kind=""),)),
    ),
    (
        InvalidInput,
        graph(alone="ab", edges=(GraphEdge(source="a", target="b", data_passing_ref="\n"),)),
    ),
    (InvalidInput, graph(alone="ab", edges=(GraphEdge(source="a", target="b", edge_id="x"),))),
    (
        DependencyAlreadyExists,
        graph(
            alone="abc",
            edges=tuple(GraphEdge(source="a", target=name, edge_id=SHARED) for name in "bc"),
        ),
    ),
    (
        InvalidPolicyJson,
        GraphSubmission(nodes=(named("a", policy={"colour": 1}),)),
    ),
    (
        InvalidCapabilities,
        GraphSubmission(
            nodes=(named("a", policy={"routing_requirements": {"required_capabilities": ["a b"]}}),)
        ),
    ),
    (InvalidInput, GraphSubmission(nodes=(named("a", lane=","),))),
    (InvalidInput, GraphSubmission(nodes=(named("a", execution_id="x"),))),
    (
        PayloadTooLarge,
        GraphSubmission(nodes=(named("a", input=b"x" * 2_000_000),)),
    ),
]


@pytest.mark.parametrize(("error", "asked"), BAD)
async def test_a_graph_that_makes_no_sense_creates_nothing(
    driver: Driver, backend: Backend, error: Any, asked: GraphSubmission
) -> None:
    before = await driver.snapshot()
    async with counted(backend, "create_graph") as calls:
        with refused(error):
            await driver.engine.graphs.submit_graph(asked)
    assert calls == []
    assert await driver.snapshot() == before


async def test_a_cycle_is_shown(driver: Driver) -> None:
    with refused(CycleDetected) as caught:
        await submit(driver, graph(("x", "a"), ("a", "b"), ("b", "c"), ("c", "a")))
    cycle = caught.value.details["cycle"]
    assert isinstance(cycle, list)
    assert sorted(cycle) == ["a", "b", "c"]
    steps = set(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    assert steps == {("a", "b"), ("b", "c"), ("c", "a")}


async def test_a_lane_that_takes_no_work_refuses_the_whole_graph(driver: Driver) -> None:
    await driver.engine.lanes.configure("default", "closed", state="draining")
    nodes = (named("a"), named("b", lane="closed"))
    with refused(LaneNotAccepting):
        await submit(driver, GraphSubmission(nodes=nodes))
    assert await driver.claim_all() == []


async def test_ids_in_another_partition_are_refused(driver: Driver) -> None:
    own = str(uuid4())
    home = driver.engine.deps.counts.of_flow(own)
    foreign = f"{{fp:{(home + 1) % 256}}}:{uuid4()}"
    nodes = (named("a", execution_id=foreign),)
    with refused(PartitionMismatch):
        await submit(driver, GraphSubmission(nodes=nodes, flow_id=own))
    member = f"{{fp:{home}}}:{uuid4()}"
    twice = tuple(named(name, execution_id=member) for name in "ab")
    with refused(InvalidInput):
        await submit(driver, GraphSubmission(nodes=twice, flow_id=own))


async def test_ids_that_are_taken_are_refused_and_nothing_is_created(driver: Driver) -> None:
    first, _ = await submit(driver, graph(("a", "b")))
    own = str(uuid4())
    while driver.engine.deps.counts.of_flow(own) != partition_of(first.executions["a"]):
        own = str(uuid4())
    alone = await driver.submit(execution_id=for_flow(driver.engine.deps.counts, own, own))
    before = await driver.snapshot()
    for taken, error in ((first.executions["a"], ExecutionAlreadyInFlow), (alone, Conflict)):
        nodes = (
            named("x"),
            named("y", execution_id=taken),
        )
        with refused(error):
            await submit(driver, GraphSubmission(nodes=nodes, flow_id=own))
    assert await driver.snapshot() == before
    with refused(FlowNotFound):
        await driver.engine.flow_reads.describe_flow(own)


async def test_an_edge_id_means_something_only_in_its_flow(driver: Driver) -> None:
    first, flow = await submit(driver, graph(("a", "b")))
    (edge,) = (await driver.engine.flow_reads.list_edges(first.flow_id)).items
    reused = GraphEdge(source="x", target="y", edge_id=edge.edge_id)
    second, other = await submit(driver, graph(alone="xy", edges=(reused,)))
    await other.complete("x")
    (settled,) = (await driver.engine.flow_reads.list_edges(second.flow_id)).items
    assert (settled.edge_id, settled.edge_state) == (edge.edge_id, "satisfied")
    assert (await driver.engine.flow_reads.list_edges(first.flow_id)).items == [edge]
    assert await flow.states() == {"a": "waiting", "b": "blocked"}


# ---- repeats


async def test_repeated_with_its_key_it_answers_the_same_flow(driver: Driver) -> None:
    asked = chain(3, idempotency_key="once")
    first, flow = await submit(driver, asked)
    secret = await driver.engine.deps.secret.get()
    assert first.flow_id == flow_id_for(secret, "default", "once")
    await flow.complete("n000")
    before = await driver.snapshot(), await flow.flow()
    again, _ = await submit(driver, asked)
    assert not again.is_new
    assert (again.flow_id, again.executions) == (first.flow_id, first.executions)
    assert again.graph_revision == first.graph_revision
    assert (await driver.snapshot(), await flow.flow()) == before


async def test_a_key_belongs_to_its_namespace(driver: Driver) -> None:
    first, _ = await submit(driver, chain(2, idempotency_key="once"))
    other, _ = await submit(driver, chain(2, idempotency_key="once", namespace="other"))
    assert other.is_new
    assert other.flow_id != first.flow_id


async def test_without_a_key_every_call_is_a_new_flow(driver: Driver) -> None:
    first, _ = await submit(driver, chain(2))
    again, _ = await submit(driver, chain(2))
    assert again.is_new
    assert first.flow_id != again.flow_id


@pytest.mark.parametrize(
    "other",
    [
        chain(4, idempotency_key="once"),
        graph(("n000", "n001"), alone=["n002"], idempotency_key="once"),
        chain(3, idempotency_key="once", groups=(GraphGroup("n001", ANY_OF),)),
    ],
)
async def test_a_key_used_for_another_graph_is_a_conflict(
    driver: Driver, other: GraphSubmission
) -> None:
    await submit(driver, chain(3, idempotency_key="once"))
    before = await driver.snapshot()
    with refused(Conflict):
        await submit(driver, other)
    assert await driver.snapshot() == before


async def test_a_flow_made_by_hand_is_not_submitted_over(driver: Driver) -> None:
    own = str(uuid4())
    await driver.engine.flows.create_flow(own)
    with refused(Conflict):
        await submit(driver, chain(2, flow_id=own))


async def test_a_repeat_does_not_bring_purged_members_back(driver: Driver) -> None:
    nodes = (
        named("a", policy={"retention_ms": 1}),
        named("b", policy={"retention_ms": 10 * MINUTE}),
    )
    asked = GraphSubmission(nodes=nodes, idempotency_key="once")
    _, flow = await submit(driver, asked)
    await flow.complete("a", "b")
    driver.clock.advance(MINUTE)
    assert await driver.engine.deps.store.backend.purge(10) == 1
    again, _ = await submit(driver, asked)
    assert not again.is_new
    (gone,) = await driver.engine.deps.store.backend.read([flow.ids["a"]], frozenset())
    assert gone is None


async def test_concurrent_submits_with_one_key_make_one_flow(driver: Driver) -> None:
    asked = chain(20, idempotency_key="once")
    answers = await asyncio.gather(*(submit(driver, asked) for _ in range(5)))
    assert sum(submitted.is_new for submitted, _ in answers) == 1
    assert len({submitted.flow_id for submitted, _ in answers}) == 1
    assert (await answers[0][1].flow()).node_count == 20


# ---- chunks


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs of a handful of members already go in chunks."""
    tiny = (Size(3, 4, 1_000), Size(2, 3, 1_000))
    monkeypatch.setattr(new_execution.chunks_of, "__defaults__", tiny)


@pytest.mark.usefixtures("small_steps")
async def test_a_large_graph_goes_in_chunks_and_starts_when_all_is_stored(
    driver: Driver, backend: Backend
) -> None:
    asked = graph(*[("top", f"t{i}") for i in range(6)], *[(f"t{i}", "end") for i in range(6)])
    create_graph = backend.create_graph
    claimable: list[int] = []

    async def watched(items: Any) -> Any:
        answers = await create_graph(items)
        claimable.append(sum(one.depth for one in await backend.queues("default", "default")))
        return answers

    backend.create_graph = watched  # type: ignore[method-assign]
    submitted, flow = await submit(driver, asked)
    assert len(claimable) > 3
    assert claimable == [0] * (len(claimable) - 1) + [1], "nothing may start before the last"
    stored = await flow.flow()
    assert (stored.incomplete, stored.node_count, stored.edge_count) == (False, 8, 12)
    assert (stored.due_at, stored.submit_until) == (0, 0)
    assert (await flow.group("end")).n == 6
    await flow.complete("top", *(f"t{i}" for i in range(6)), "end")
    assert flow_state(await flow.flow()) == "completed"
    assert submitted.is_new


@pytest.mark.usefixtures("small_steps")
async def test_a_repeated_submit_finishes_a_broken_one(driver: Driver, backend: Backend) -> None:
    asked = chain(9, idempotency_key="once")
    create_graph = backend.create_graph
    async with counted(backend, "create_graph") as calls:
        await submit(driver, chain(9))
    for broken_at in range(len(calls)):
        key = f"once-{broken_at}"
        asked = chain(9, idempotency_key=key)
        left = broken_at

        async def breaking(items: Any) -> Any:
            nonlocal left
            if not left:
                raise TransportFault("store: connection lost")
            left -= 1
            return await create_graph(items)

        backend.create_graph = breaking  # type: ignore[method-assign]
        with refused(TransportFault):
            await submit(driver, asked)
        backend.create_graph = create_graph  # type: ignore[method-assign]
        submitted, flow = await submit(driver, asked)
        assert submitted.is_new
        stored = await flow.flow()
        assert (stored.node_count, stored.edge_count, stored.incomplete) == (9, 8, False)
        assert not (await submit(driver, asked))[0].is_new


@pytest.mark.usefixtures("small_steps")
async def test_an_unfinished_submit_cannot_finish_and_shows_it(
    driver: Driver, backend: Backend
) -> None:
    flow = await half_submitted(driver, backend, chain(9, idempotency_key="once"))
    stored = await flow.flow()
    assert stored.incomplete
    assert stored.due_at == stored.submit_until == driver.clock() + 10 * MINUTE
    await cancel_first(driver, flow)
    stored = await flow.flow()
    assert stored.counts.keys() == {"cancelled", "skipped"}
    assert (stored.finished_at, flow_state(stored)) == (0, "open")
    found = await driver.engine.flow_reads.describe_flow(flow.flow_id)
    assert found is not None
    assert found.incomplete


async def cancel_first(driver: Driver, flow: FlowUnderTest) -> set[str]:
    """Cancel the first of the members that are there, which skips those behind it; all of them."""
    page = await driver.engine.flow_reads.list_members(flow.flow_id)
    await driver.engine.outcomes.cancel(unfenced(page.items[0].execution_id), "enough")
    return {member.execution_id for member in page.items}


async def half_submitted(
    driver: Driver, backend: Backend, asked: GraphSubmission, chunks: int = 2
) -> FlowUnderTest:
    """Only the first chunks of a graph arrived; then its submitter died."""
    create_graph = backend.create_graph
    left = chunks

    async def dying(items: Any) -> Any:
        nonlocal left
        if not left:
            raise TransportFault("gone")
        left -= 1
        return await create_graph(items)

    backend.create_graph = dying  # type: ignore[method-assign]
    with refused(TransportFault):
        await driver.engine.graphs.submit_graph(asked)
    backend.create_graph = create_graph  # type: ignore[method-assign]
    own = flow_id_for(await driver.engine.deps.secret.get(), "default", asked.idempotency_key)
    return FlowUnderTest(driver.engine, own, {})


@pytest.mark.usefixtures("small_steps")
async def test_an_abandoned_submit_is_cancelled_after_ten_minutes(
    driver: Driver, backend: Backend
) -> None:
    asked = chain(9, idempotency_key="once")
    flow = await half_submitted(driver, backend, asked)
    members = (await flow.flow()).node_count
    assert (await driver.pass_time(10 * MINUTE - 1)).counts == {}
    result = await driver.pass_time(1)
    assert result.of("flow_settle") == 1
    stored = await flow.flow()
    assert (stored.cancel_reason, stored.cancel_policy) == ("submit_abandoned", "cancel_all")
    assert stored.counts == {"cancelled": members}
    assert (stored.finished_at, stored.due_at) == (driver.clock(), 0)
    assert (await driver.sweep()).counts == {}
    with refused(FlowAlreadyTerminal):
        await driver.engine.graphs.submit_graph(asked)
    assert (await flow.flow()).node_count == members
    driver.clock.advance(86_400_000)
    await driver.engine.deps.store.backend.purge(100)
    assert await driver.engine.deps.store.backend.flows([flow.flow_id]) == [None]


@pytest.mark.usefixtures("small_steps")
async def test_every_chunk_gives_the_submitter_ten_more_minutes(
    driver: Driver, backend: Backend
) -> None:
    asked = chain(9, idempotency_key="once")
    flow = await half_submitted(driver, backend, asked, 1)
    driver.clock.advance(9 * MINUTE)
    await half_submitted(driver, backend, asked, 2)
    assert (await driver.pass_time(9 * MINUTE)).counts == {}
    assert (await flow.flow()).cancelled_at == 0
    submitted, _ = await submit(driver, asked)
    assert submitted.is_new
    assert (await driver.pass_time(60 * MINUTE)).counts == {}


@pytest.mark.usefixtures("small_steps")
async def test_chunks_of_another_graph_do_not_mix_in(driver: Driver, backend: Backend) -> None:
    flow = await half_submitted(driver, backend, chain(9, idempotency_key="once"))
    before = await flow.flow()
    with refused(Conflict):
        await submit(driver, chain(12, idempotency_key="once"))
    assert await flow.flow() == before


@pytest.mark.usefixtures("small_steps")
async def test_a_submit_cancelled_underway_is_told_so(driver: Driver, backend: Backend) -> None:
    asked = chain(9, idempotency_key="once")
    flow = await half_submitted(driver, backend, asked)
    await driver.engine.flow_operators.cancel_flow(flow.flow_id, "cancel_all", "enough")
    with refused(FlowAlreadyTerminal):
        await submit(driver, asked)
    assert (await flow.flow()).finished_at == driver.clock()


@pytest.mark.usefixtures("small_steps")
async def test_a_root_that_came_too_late_for_its_race_is_cut(
    driver: Driver, backend: Backend
) -> None:
    """The first roots are claimed and done while the others are still on their way."""
    names = [f"s{i}" for i in range(8)]
    groups = (GraphGroup("t", ANY_OF),)
    asked = graph(*[(name, "t") for name in names], groups=groups, idempotency_key="once")
    create_graph = backend.create_graph
    won: list[str] = []

    async def racing(items: Any) -> Any:
        answers = await create_graph(items)
        if not won and (claimed := await driver.claim_all()):
            won.append(claimed[0].execution_id)
            await driver.engine.outcomes.complete(claimed[0].proof)
        return answers

    backend.create_graph = racing  # type: ignore[method-assign]
    submitted, flow = await submit(driver, asked)
    states = await flow.states()
    names_by_id = {own: name for name, own in submitted.executions.items()}
    assert states.pop(names_by_id[won[0]]) == "completed"
    assert states.pop("t") == "waiting"
    assert set(states.values()) == {"cancelled"}
    assert {(await flow.record(name)).cancellation_reason for name in states} == {
        "sibling_quorum_satisfied"
    }


@pytest.mark.usefixtures("small_steps")
async def test_a_member_ended_by_hand_before_its_edges_came_settles_them(
    driver: Driver, backend: Backend
) -> None:
    asked = chain(9, idempotency_key="once")
    flow = await half_submitted(driver, backend, asked)
    ended = await cancel_first(driver, flow)
    _, whole = await submit(driver, asked)
    states = await whole.states()
    assert states.pop("n000") == "waiting"
    assert {whole.ids[name] for name in states} > ended
    assert sorted(states.values()) == ["cancelled", *["skipped"] * 7]


async def test_the_largest_graph_of_one_step_is_one_step(driver: Driver, backend: Backend) -> None:
    names = [f"n{i:03}" for i in range(1_000)]
    edges = [(names[i - d], names[i]) for i in range(1_000) for d in range(1, 6) if i >= d]
    async with counted(backend, "create_graph") as calls:
        submitted, flow = await submit(driver, graph(*edges))
    assert len(calls) == 1
    stored = await flow.flow()
    assert (stored.node_count, stored.edge_count) == (1_000, len(edges))
    assert submitted.graph_revision == 1_000 + len(edges)
