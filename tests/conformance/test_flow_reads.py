"""Reads of flows: one, many, their members, edges and upstreams."""

from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from flowfabric.core.edge_policies import EdgePolicy
from flowfabric.core.pages import write_cursor
from flowfabric.core.states import PUBLIC_STATES
from flowfabric.errors import Corruption, ExecutionNotFound, FlowNotFound, InvalidInput
from flowfabric.operations.execution_queries import ExecutionQueries
from flowfabric.operations.flow_queries import EdgeGroup, FlowQueries, FlowSummary, Member
from tests.conformance.driver import Driver, refused, stranger, unfenced
from tests.conformance.editing import LATER, new_flow, upstream, upstreams
from tests.conformance.graphs import Arrow, FlowUnderTest, Graph, chain
from tests.conformance.graphs import Member as Asked
from tests.proofs import proves

QUORUM = {"policy": "quorum", "k": 2, "on_satisfied": "let_run"}


# ---- describe


@proves(FlowQueries.describe_flow)
async def test_a_flow_describes_itself_and_its_groups(driver: Driver) -> None:
    graph = Graph(
        arrows=[("a", "c"), ("b", "c"), ("x", "c"), ("c", "d")],
        groups={"c": QUORUM},
        flow={"kind": "etl", "tags": {"app.team": "red"}, "partition": 3},
    )
    flow = await driver.graph(graph)
    await flow.complete("a")
    await flow.fail("b")
    found = await driver.engine.flow_reads.describe_flow(flow.flow_id)
    assert (found.flow_id, found.flow_kind, found.namespace) == (flow.flow_id, "etl", "default")
    assert (found.node_count, found.total_members, found.edge_count) == (5, 5, 4)
    assert found.graph_revision == 9
    assert set(found.members) == set(PUBLIC_STATES)
    assert found.members["completed"] == found.members["failed"] == 1
    assert (found.members["waiting"], found.members["waiting_children"]) == (1, 2)
    assert (found.public_flow_state, found.tags) == ("blocked", {"app.team": "red"})
    assert (found.cancelled_at, found.cancel_reason, found.cancel_policy) == (0, "", "")
    assert (found.incomplete, found.unsettled, found.due_at) == (False, 0, 0)
    groups = {group.downstream_execution_id: group for group in found.edge_groups}
    assert groups == {
        flow.ids["c"]: EdgeGroup(
            downstream_execution_id=flow.ids["c"],
            policy=EdgePolicy("quorum", 2, "let_run"),
            total_deps=3,
            satisfied_count=1,
            failed_count=1,
            skipped_count=0,
            running_count=1,
            group_state="pending",
        ),
        flow.ids["d"]: EdgeGroup(
            downstream_execution_id=flow.ids["d"],
            policy=EdgePolicy("all_of"),
            total_deps=1,
            satisfied_count=0,
            failed_count=0,
            skipped_count=0,
            running_count=1,
            group_state="pending",
        ),
    }


async def test_a_cancelled_flow_tells_when_why_and_how(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    await driver.engine.flow_operators.cancel_flow(flow.flow_id, "cancel_all", "enough")
    found = await driver.engine.flow_reads.describe_flow(flow.flow_id)
    assert (found.public_flow_state, found.cancelled_at) == ("cancelled", driver.clock())
    assert (found.cancel_reason, found.cancel_policy) == ("enough", "cancel_all")
    assert found.finished_at == driver.clock()


async def test_a_missing_flow_is_not_found(driver: Driver) -> None:
    reads = driver.engine.flow_reads
    for read in (reads.describe_flow, reads.list_members, reads.list_edges):
        with refused(FlowNotFound):
            await read(stranger())
    assert await reads.describe_edge(stranger(), stranger()) is None
    with refused(InvalidInput):
        await reads.describe_flow("x")


async def test_groups_of_many_members_are_all_there(driver: Driver) -> None:
    flow = await driver.graph(Graph(arrows=[("top", f"t{i:04}") for i in range(1_100)]))
    found = await driver.engine.flow_reads.describe_flow(flow.flow_id)
    assert len({group.downstream_execution_id for group in found.edge_groups}) == 1_100


# ---- list flows


async def in_one_partition(driver: Driver, total: int) -> list[str]:
    counts = driver.engine.deps.counts
    found: list[str] = []
    while len(found) < total:
        own = str(uuid4())
        if counts.of_flow(own) == 7:
            await driver.engine.flows.create_flow(own)
            found.append(own)
    return sorted(found, key=lambda own: UUID(own).bytes)


@proves(FlowQueries.list_flows)
async def test_flows_of_a_partition_are_listed_by_id_page_by_page(driver: Driver) -> None:
    flows = await in_one_partition(driver, 5)
    await driver.engine.flows.create_flow(_elsewhere(driver))
    listed: list[str] = []
    cursor, pages = "", 0
    while True:
        page = await driver.engine.flow_reads.list_flows(7, cursor, 2)
        listed += [one.flow_id for one in page.items]
        cursor, pages = page.next_cursor, pages + 1
        if not cursor:
            break
        assert cursor == listed[-1]
    assert (listed, pages) == (flows, 3)
    whole = await driver.engine.flow_reads.list_flows(7, limit=5)
    assert (len(whole.items), whole.next_cursor) == (5, "")
    assert (await driver.engine.flow_reads.list_flows(7, limit=0)).items == []


def _elsewhere(driver: Driver) -> str:
    while driver.engine.deps.counts.of_flow(own := str(uuid4())) == 7:
        pass
    return own


STATUSES = ["active", "running", "blocked", "completed", "failed", "cancelled"]


@pytest.mark.parametrize("status", STATUSES)
async def test_a_listing_tells_what_became_of_each_flow(driver: Driver, status: str) -> None:
    flow = await new_flow(driver.engine)
    await flow.add("a")
    match status:
        case "running":
            await flow.take("a")
        case "blocked":
            await flow.add("b", delay_until=LATER)
        case "completed":
            await flow.complete("a")
        case "failed":
            await flow.fail("a")
        case "cancelled":
            await driver.engine.flow_operators.cancel_flow(flow.flow_id)
    partition = driver.engine.deps.counts.of_flow(flow.flow_id)
    page = await driver.engine.flow_reads.list_flows(partition)
    shown = "active" if status in ("active", "running", "blocked") else status
    assert page.items == [FlowSummary(flow.flow_id, driver.clock(), shown)]


@pytest.mark.parametrize("partition", ["7", 256, -1, 7.0, True, "", None])
async def test_a_bad_partition_is_refused(driver: Driver, partition: Any) -> None:
    with refused(InvalidInput):
        await driver.engine.flow_reads.list_flows(partition)


# ---- members


@proves(FlowQueries.list_members)
async def test_members_are_listed_by_creation_with_their_public_state(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    names = ["first", "second", "third", "fourth", "fifth"]
    for name in names:
        await flow.add(name)
        driver.clock.advance(1)
    await flow.complete("second")
    await flow.take("third")
    await flow.join("first", "fourth")
    await driver.engine.scheduling.block(flow.ids["fifth"], "waiting_for_budget")
    states = ["waiting", "completed", "active", "waiting_children", "rate_limited"]
    expected = [Member(flow.ids[name], state) for name, state in zip(names, states, strict=True)]
    listed: list[Member] = []
    cursor = ""
    while True:
        page = await driver.engine.flow_reads.list_members(flow.flow_id, cursor, 2)
        listed += page.items
        cursor = page.next_cursor
        if not cursor:
            break
    assert listed == expected
    whole = await driver.engine.flow_reads.list_members(flow.flow_id, limit=5)
    assert (whole.items, whole.next_cursor) == (expected, "")
    assert (await driver.engine.flow_reads.list_members(flow.flow_id, limit=0)).items == []


async def test_members_of_one_moment_are_all_listed_once(driver: Driver) -> None:
    flow = await driver.graph(Graph(members={f"m{i}": Asked() for i in range(25)}))
    listed: list[str] = []
    cursor = ""
    while True:
        page = await driver.engine.flow_reads.list_members(flow.flow_id, cursor, 4)
        listed += [one.execution_id for one in page.items]
        cursor = page.next_cursor
        if not cursor:
            break
    assert sorted(listed) == sorted(flow.ids.values())


@pytest.mark.parametrize("cursor", ["x", "1", ":", "1:x", f"{'9' * 20}:x", "-1:{fp:1}:y"])
async def test_a_cursor_nobody_gave_is_refused(driver: Driver, cursor: str) -> None:
    flow = await new_flow(driver.engine, "a")
    with refused(InvalidInput):
        await driver.engine.flow_reads.list_members(flow.flow_id, cursor)
    for limit in (-1, "2", None):
        with refused(InvalidInput):
            await driver.engine.flow_reads.list_members(flow.flow_id, limit=limit)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", [(-1, None), (2**62, None), (1, "x"), (1, "")])
async def test_a_forged_cursor_is_refused(driver: Driver, place: tuple[int, str | None]) -> None:
    flow = await new_flow(driver.engine, "a")
    at, name = place
    own = flow.ids["a"] if name is None else name
    forged = write_cursor(("members", flow.flow_id), (at, own))
    with refused(InvalidInput):
        await driver.engine.flow_reads.list_members(flow.flow_id, forged)


async def test_the_cursor_of_another_flow_is_refused(driver: Driver) -> None:
    first, second = [await new_flow(driver.engine, "a", "b") for _ in range(2)]
    page = await driver.engine.flow_reads.list_members(first.flow_id, limit=1)
    with refused(InvalidInput, "cursor: made by another query"):
        await driver.engine.flow_reads.list_members(second.flow_id, page.next_cursor)


# ---- edges


def pairs(flow: FlowUnderTest, edges: Any) -> list[tuple[str, str]]:
    names = {own: name for name, own in flow.ids.items()}
    return [(names[one.upstream_execution_id], names[one.downstream_execution_id]) for one in edges]


@proves(FlowQueries.list_edges)
async def test_edges_are_listed_by_end_or_all_together(driver: Driver) -> None:
    arrows = [Arrow("a", "b", "report"), Arrow("a", "c"), Arrow("b", "d"), Arrow("c", "d")]
    flow = await driver.graph(Graph(arrows=arrows))
    reads = driver.engine.flow_reads
    everything = await reads.list_edges(flow.flow_id)
    assert pairs(flow, everything.items) == [arrow[:2] for arrow in arrows]
    leaving = await reads.list_edges(flow.flow_id, flow.ids["a"], "outgoing")
    assert pairs(flow, leaving.items) == [("a", "b"), ("a", "c")]
    reaching = await reads.list_edges(flow.flow_id, flow.ids["d"], "incoming")
    assert pairs(flow, reaching.items) == [("b", "d"), ("c", "d")]
    assert (await reads.list_edges(flow.flow_id, flow.ids["d"], "outgoing")).items == []
    first = everything.items[0]
    assert (first.flow_id, first.dependency_kind, first.edge_state) == (
        flow.flow_id,
        "success_only",
        "open",
    )
    assert (first.data_passing_ref, first.resolved_at) == ("report", 0)
    assert everything.items[1].data_passing_ref == ""
    await flow.complete("a")
    again = await reads.describe_edge(flow.flow_id, first.edge_id)
    assert again is not None
    assert (again.edge_state, again.resolved_at) == ("satisfied", driver.clock())


async def test_edges_come_page_by_page(driver: Driver) -> None:
    arrows = [("top", f"t{i:02}") for i in range(7)]
    flow = await driver.graph(Graph(arrows=arrows))
    for end in ("", flow.ids["top"]):
        listed: list[tuple[str, str]] = []
        cursor = ""
        while True:
            page = await driver.engine.flow_reads.list_edges(
                flow.flow_id, end, cursor=cursor, limit=3
            )
            listed += pairs(flow, page.items)
            cursor = page.next_cursor
            if not cursor:
                break
        assert listed == arrows


async def test_edges_of_another_flow_are_not_shown(driver: Driver) -> None:
    mine, other = await driver.graph(chain("a", "b")), await driver.graph(chain("x", "y"))
    reads = driver.engine.flow_reads
    assert (await reads.list_edges(mine.flow_id, other.ids["x"])).items == []
    (theirs,) = (await reads.list_edges(other.flow_id)).items
    assert await reads.describe_edge(mine.flow_id, theirs.edge_id) is None
    with refused(InvalidInput):
        await reads.list_edges(mine.flow_id, mine.ids["a"], "sideways")  # type: ignore[arg-type]
    with refused(InvalidInput):
        await reads.list_edges(mine.flow_id, "x")
    with refused(InvalidInput):
        await reads.describe_edge(mine.flow_id, "x")


async def test_an_edge_that_contradicts_its_place_is_corrupt(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    backend = driver.engine.deps.store.backend
    edges = backend.edges

    async def wrong(queries: Any) -> Any:
        pages = await edges(queries)
        return [
            tuple(msgspec.structs.replace(edge, source="nonsense") for edge in page)
            for page in pages
        ]

    backend.edges = wrong  # type: ignore[method-assign]
    with refused(Corruption):
        await driver.engine.flow_reads.list_edges(flow.flow_id)
    with refused(Corruption):
        await driver.engine.flow_reads.list_edges(flow.flow_id, flow.ids["a"])
    backend.edges = edges  # type: ignore[method-assign]


# ---- upstreams


@proves(ExecutionQueries.upstreams)
async def test_upstreams_tell_who_feeds_a_member_and_how_each_ended(driver: Driver) -> None:
    arrows = [Arrow("a", "d", "left"), Arrow("b", "d"), Arrow("c", "d", "input"), Arrow("x", "d")]
    groups = {"d": {"policy": "quorum", "k": 4, "on_satisfied": "let_run"}}
    members = {"d": Asked(input=b"original"), "x": Asked(delay_until=LATER)}
    flow = await driver.graph(Graph(arrows=arrows, groups=groups, members=members))
    await flow.complete("a", result=b"A")
    await flow.complete("b", result=b"B")
    await flow.complete("c", result=b"C")
    plain = await upstreams(driver.engine, flow.ids["d"])
    names = {own: name for name, own in flow.ids.items()}
    assert [(names[one.execution_id], one.data_ref, one.outcome) for one in plain] == [
        ("a", "left", "success"),
        ("b", "", "success"),
        ("c", "input", "success"),
        ("x", "", ""),
    ]
    assert all(one.result is None for one in plain)
    rich = await upstreams(driver.engine, flow.ids["d"], results=True)
    assert [one.result for one in rich] == [b"A", None, None, None]
    assert await flow.input("d") == b"C"
    with refused(ExecutionNotFound):
        await upstreams(driver.engine, flow.ids["d"][:-12] + "000000000000")


async def test_staged_edges_are_no_upstreams(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b", "t")
    await flow.stage("a", "t")
    await flow.join("b", "t")
    found = await upstreams(driver.engine, flow.ids["t"])
    assert [one.execution_id for one in found] == [flow.ids["b"]]


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "skipped"])
async def test_the_outcome_of_an_edge_is_how_its_source_ended_then(
    driver: Driver, outcome: str
) -> None:
    flow = await driver.graph(
        Graph(
            arrows=[("above", "a"), ("a", "t"), ("b", "t")],
            groups={"t": {"policy": "any_of", "k": 1, "on_satisfied": "let_run"}},
        )
    )
    match outcome:
        case "failed":
            await flow.complete("above")
            await flow.fail("a")
        case "cancelled":
            await driver.engine.outcomes.cancel(unfenced(flow.ids["a"]), "enough")
        case _:
            await flow.fail("above")
    told = {flow.ids["a"]: outcome, flow.ids["b"]: ""}
    found = await upstreams(driver.engine, flow.ids["t"])
    assert {one.execution_id: one.outcome for one in found} == told
    await driver.engine.operators.replay(flow.ids["a"])
    found = await upstreams(driver.engine, flow.ids["t"])
    assert {one.execution_id: one.outcome for one in found} == told


async def test_a_replayed_upstream_has_no_result_until_it_completes_again(driver: Driver) -> None:
    flow = await driver.graph(Graph(arrows=[Arrow("a", "t", "report")]))
    await flow.complete("a", result=b"one")
    await driver.engine.operators.replay(flow.ids["a"])
    found = await upstream(driver.engine, flow.ids["t"], "report")
    assert found is not None
    assert (found.outcome, found.result) == ("success", None)
    await flow.complete("a", result=b"two")
    found = await upstream(driver.engine, flow.ids["t"], "report")
    assert found is not None
    assert found.result == b"two"


async def test_of_edges_that_share_a_name_the_first_satisfied_is_read(driver: Driver) -> None:
    arrows = [Arrow(name, "t", "answer") for name in "abc"]
    groups = {"t": {"policy": "any_of", "k": 1, "on_satisfied": "let_run"}}
    flow = await driver.graph(Graph(arrows=arrows, groups=groups))
    assert await upstream(driver.engine, flow.ids["t"], "answer") is None
    await flow.complete("c", result=b"C")
    driver.clock.advance(5)
    await flow.complete("a", result=b"A")
    found = await upstream(driver.engine, flow.ids["t"], "answer")
    assert found is not None
    assert (found.execution_id, found.result) == (flow.ids["c"], b"C")
    assert await upstream(driver.engine, flow.ids["t"], "other") is None


async def test_results_past_the_limit_are_deferred(driver: Driver) -> None:
    arrows = [Arrow(f"s{i}", "t", f"part{i}") for i in range(5)]
    flow = await driver.graph(Graph(arrows=arrows))
    for i in range(5):
        await flow.complete(f"s{i}", result=b"x" * 1_000_000)
    found = await upstreams(driver.engine, flow.ids["t"], results=True)
    assert [one.result_deferred for one in found] == [False] * 4 + [True]
    assert found[4].result is None


async def test_a_member_with_very_many_upstreams_shows_them_all(driver: Driver) -> None:
    flow = await driver.graph(Graph(arrows=[(f"s{i:04}", "t") for i in range(1_500)]))
    assert len(await upstreams(driver.engine, flow.ids["t"])) == 1_500
