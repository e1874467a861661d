"""Making flows, joining them, tagging them, and the flow a parent's children live in."""

import asyncio
from uuid import uuid4

import pytest

from flowfabric.core.graph import flow_state
from flowfabric.core.ids import for_flow, partition_of
from flowfabric.errors import (
    Conflict,
    ExecutionAlreadyInFlow,
    ExecutionNotFound,
    FlowAlreadyTerminal,
    FlowNotFound,
    InvalidInput,
    InvalidTagKey,
    PartitionMismatch,
)
from flowfabric.operations.executions import Submission, TagsUpdated
from flowfabric.operations.flows import (
    AlreadyMember,
    FlowCreated,
    FlowExists,
    Flows,
    MemberAdded,
)
from tests.conformance.driver import Driver, elsewhere, refused, unfenced
from tests.conformance.editing import LATER, new_flow
from tests.proofs import proves


def flow_id() -> str:
    return str(uuid4())


async def standalone(driver: Driver, flow: str, **fields: object) -> str:
    """An execution of no flow, in the partition of this one."""
    execution_id = for_flow(driver.engine.deps.counts, flow, flow_id())
    return await driver.submit(execution_id=execution_id, **fields)


# ---- create


@proves(Flows.create_flow)
async def test_a_flow_begins_empty(driver: Driver) -> None:
    own = flow_id()
    assert await driver.engine.flows.create_flow(own, "etl") == FlowCreated(own)
    found = await driver.engine.flow_reads.describe_flow(own)
    assert (found.flow_kind, found.namespace, found.public_flow_state) == ("etl", "default", "open")
    assert (found.graph_revision, found.node_count, found.edge_count) == (0, 0, 0)
    assert (found.created_at, found.changed_at) == (driver.clock(), driver.clock())


async def test_making_the_same_flow_again_changes_nothing(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a")
    before = await flow.flow()
    driver.clock.advance(5)
    again = await driver.engine.flows.create_flow(flow.flow_id, "edited")
    assert again == FlowExists(flow.flow_id)
    assert await flow.flow() == before


@pytest.mark.parametrize(
    ("kind", "namespace", "field"),
    [("other", "default", "flow_kind"), ("edited", "other", "namespace")],
)
async def test_a_flow_with_other_content_is_a_conflict(
    driver: Driver, kind: str, namespace: str, field: str
) -> None:
    flow = await new_flow(driver.engine)
    before = await flow.flow()
    with refused(Conflict) as caught:
        await driver.engine.flows.create_flow(flow.flow_id, kind, namespace)
    assert caught.value.detail.startswith(field)
    assert await flow.flow() == before


@pytest.mark.parametrize(
    ("own", "kind", "namespace"),
    [
        ("nonsense", "k", "default"),
        ("00000000-0000-4000-8000-00000000000A", "k", "default"),
        ("00000000-0000-4000-8000-00000000000a", "k" * 1025, "default"),
        ("00000000-0000-4000-8000-00000000000a", "k", "a b"),
    ],
)
async def test_a_malformed_flow_is_refused(
    driver: Driver, own: str, kind: str, namespace: str
) -> None:
    with refused(InvalidInput):
        await driver.engine.flows.create_flow(own, kind, namespace)


async def test_a_flow_without_an_id_gets_one(driver: Driver) -> None:
    made = await driver.engine.flows.create_flow(flow_kind="etl")
    assert made.is_new
    assert (await driver.engine.flow_reads.describe_flow(made.flow_id)).flow_kind == "etl"


# ---- members


@proves(Flows.add_member)
async def test_a_member_shows_on_both_sides(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    member = await standalone(driver, flow.flow_id)
    before = await driver.record(member)
    driver.clock.advance(7)
    added = await driver.engine.flows.add_member(flow.flow_id, member)
    assert added == MemberAdded(member, 1)
    stored = await flow.flow()
    assert (stored.node_count, stored.graph_revision, stored.counts) == (1, 1, {"waiting": 1})
    assert stored.changed_at == driver.clock()
    record = await driver.record(member)
    assert (record.flow_id, record.state) == (flow.flow_id, "waiting")
    assert record.version == before.version + 1
    assert await driver.engine.reads.resolve_execution_flow_id(member) == flow.flow_id
    page = await driver.engine.flow_reads.list_members(flow.flow_id)
    assert [(one.execution_id, one.public_state) for one in page.items] == [(member, "waiting")]


async def test_adding_a_member_again_changes_nothing(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", "b")
    before = await flow.flow()
    again = await driver.engine.flows.add_member(flow.flow_id, flow.ids["a"])
    assert again == AlreadyMember(flow.ids["a"], 2)
    assert await flow.flow() == before


@pytest.mark.parametrize(
    "situation", ["delayed", "blocked", "active", "lease_revoked", "suspended", "completed"]
)
async def test_an_execution_joins_in_any_state_and_is_counted_as_what_it_is(
    driver: Driver, situation: str
) -> None:
    flow = await new_flow(driver.engine)
    execution_id = for_flow(driver.engine.deps.counts, flow.flow_id, flow_id())
    held = await driver.reach(situation, execution_id=execution_id)
    await driver.engine.flows.add_member(flow.flow_id, held.execution_id)
    public = {
        "delayed": "delayed",
        "blocked": "waiting",
        "lease_revoked": "active",
        "active": "active",
        "suspended": "suspended",
        "completed": "completed",
    }[situation]
    stored = await flow.flow()
    assert stored.counts == {public: 1}
    assert bool(stored.finished_at) == (situation == "completed")


async def test_twenty_concurrent_adds_are_counted_exactly(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    members = [await standalone(driver, flow.flow_id) for _ in range(20)]
    add = driver.engine.flows.add_member
    answers = await asyncio.gather(*(add(flow.flow_id, member) for member in members * 2))
    assert sum(answer.is_new for answer in answers) == 20
    stored = await flow.flow()
    assert (stored.node_count, stored.graph_revision) == (20, 20)
    assert stored.counts == {"waiting": 20}


async def test_one_execution_joins_one_flow_even_if_two_ask_at_once(driver: Driver) -> None:
    first = await new_flow(driver.engine)
    second = first.flow_id
    while second == first.flow_id or not _same_partition(driver, first.flow_id, second):
        second = flow_id()
    await driver.engine.flows.create_flow(second)
    member = await standalone(driver, first.flow_id)
    add = driver.engine.flows.add_member
    answers = await asyncio.gather(
        add(first.flow_id, member), add(second, member), return_exceptions=True
    )
    assert sorted(type(answer).__name__ for answer in answers) == [
        "ExecutionAlreadyInFlow",
        "MemberAdded",
    ]


def _same_partition(driver: Driver, one: str, other: str) -> bool:
    counts = driver.engine.deps.counts
    return counts.of_flow(one) == counts.of_flow(other)


async def test_what_may_not_join_is_refused_and_nothing_is_written(driver: Driver) -> None:
    engine = driver.engine
    flow = await new_flow(engine, "a")
    add = engine.flows.add_member
    member = await standalone(driver, flow.flow_id)
    foreign = await standalone(driver, flow.flow_id, namespace="other")
    missing = for_flow(engine.deps.counts, flow.flow_id, flow_id())
    before = await driver.snapshot(), await flow.flow()
    with refused(PartitionMismatch):
        await add(flow.flow_id, elsewhere(member))
    nowhere = flow_id()
    with refused(FlowNotFound):
        await add(nowhere, for_flow(engine.deps.counts, nowhere, flow_id()))
    with refused(ExecutionNotFound):
        await add(flow.flow_id, missing)
    with refused(InvalidInput):
        await add(flow.flow_id, foreign)
    with refused(InvalidInput):
        await add("nonsense", member)
    with refused(InvalidInput):
        await add(flow.flow_id, "nonsense")
    assert (await driver.snapshot(), await flow.flow()) == before


async def test_a_member_of_another_flow_is_named(driver: Driver) -> None:
    mine, other = await new_flow(driver.engine), flow_id()
    while not _same_partition(driver, mine.flow_id, other):
        other = flow_id()
    await driver.engine.flows.create_flow(other)
    member = await driver.submit(flow_id=other)
    with refused(ExecutionAlreadyInFlow) as caught:
        await driver.engine.flows.add_member(mine.flow_id, member)
    assert caught.value.details["flow_id"] == other


async def test_a_cancelled_flow_takes_no_members_by_any_way(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a")
    member = await standalone(driver, flow.flow_id)
    await driver.engine.flow_operators.cancel_flow(flow.flow_id, "flow_only")
    with refused(FlowAlreadyTerminal):
        await driver.engine.flows.add_member(flow.flow_id, member)
    with refused(FlowAlreadyTerminal):
        await driver.submit(flow_id=flow.flow_id)
    with refused(FlowAlreadyTerminal):
        await driver.engine.flows.add_member(flow.flow_id, flow.ids["a"])


async def test_the_flow_comes_before_the_execution(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    await driver.engine.flow_operators.cancel_flow(flow.flow_id)
    missing = for_flow(driver.engine.deps.counts, flow.flow_id, flow_id())
    with refused(FlowAlreadyTerminal):
        await driver.engine.flows.add_member(flow.flow_id, missing)


async def test_an_execution_created_in_a_flow_joins_in_that_step(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    await flow.add("a", "b")
    stored = await flow.flow()
    assert (stored.node_count, stored.graph_revision, stored.counts) == (2, 2, {"waiting": 2})
    with refused(InvalidInput):
        await driver.submit(flow_id=flow.flow_id, namespace="other")
    assert await flow.flow() == stored


async def test_a_finished_flow_takes_members_and_is_open_again(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a", delay_until=0)
    await flow.complete("a")
    assert flow_state(await flow.flow()) == "completed"
    driver.clock.advance(5)
    await flow.add("b")
    stored = await flow.flow()
    assert (flow_state(stored), stored.finished_at, stored.purge_at) == ("open", 0, 0)
    await flow.fail("b")
    stored = await flow.flow()
    assert (flow_state(stored), stored.finished_at) == ("failed", driver.clock())
    states = [entry.details["state"] for entry in await driver.events("flow")]
    assert states == ["completed", "failed"]


# ---- tags


@proves(Flows.set_flow_tags)
async def test_tags_are_written_over_and_read_back(driver: Driver) -> None:
    flows = driver.engine.flows
    flow = await new_flow(driver.engine)
    updated = await flows.set_flow_tags(flow.flow_id, {"app.team": "red", "app.n": ""})
    assert updated == TagsUpdated(2)
    assert await flows.set_flow_tag(flow.flow_id, "app.team", "blue") == TagsUpdated(1)
    assert await flows.get_flow_tag(flow.flow_id, "app.team") == "blue"
    assert await flows.get_flow_tag(flow.flow_id, "app.n") == ""
    assert await flows.get_flow_tag(flow.flow_id, "app.unset") is None
    assert await flows.get_flow_tag(flow_id(), "app.team") is None
    assert (await flow.flow()).tags == {"app.team": "blue", "app.n": ""}


async def test_flow_tags_are_checked(driver: Driver) -> None:
    flows = driver.engine.flows
    flow = await new_flow(driver.engine)
    for key in ("nodot", "App.x", "app.", "a-b.c"):
        with refused(InvalidTagKey, key):
            await flows.set_flow_tags(flow.flow_id, {"app.fine": "1", key: "1"})
        with refused(InvalidTagKey, key):
            await flows.get_flow_tag(flow.flow_id, key)
    with refused(InvalidInput):
        await flows.set_flow_tags(flow.flow_id, {})
    with refused(FlowNotFound):
        await flows.set_flow_tags(flow_id(), {"app.fine": "1"})
    assert (await flow.flow()).tags == {}


async def test_concurrent_tags_are_all_kept(driver: Driver) -> None:
    flow = await new_flow(driver.engine)
    pairs = {f"app.k{i}": str(i) for i in range(20)}
    await asyncio.gather(
        *(driver.engine.flows.set_flow_tag(flow.flow_id, *pair) for pair in pairs.items())
    )
    assert (await flow.flow()).tags == pairs


async def test_events_of_a_flow_carry_its_searchable_tags(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a")
    await driver.engine.flows.set_flow_tags(flow.flow_id, {"app.team": "red", "app.secret": "x"})
    await driver.engine.flow_operators.cancel_flow(flow.flow_id, "cancel_all", "enough")
    operator, finished = [*await driver.events("operator"), *await driver.events("flow")]
    for entry in (operator, finished):
        assert (entry.flow_id, entry.namespace) == (flow.flow_id, "default")
        assert entry.tags == {"app.team": "red"}
        assert entry.execution_id == ""


# ---- children of standalone executions


@proves(Flows.children_flow)
async def test_a_standalone_parent_joins_a_flow_of_its_own(driver: Driver) -> None:
    parent = await driver.submit(idempotency_key="once")
    own = await driver.engine.flows.children_flow(parent)
    found = await driver.engine.flow_reads.describe_flow(own)
    assert (found.flow_kind, found.node_count) == ("children", 1)
    assert driver.engine.deps.counts.of_flow(own) == partition_of(parent)
    assert (await driver.record(parent)).flow_id == own
    assert await driver.engine.flows.children_flow(parent) == own


async def test_a_member_keeps_its_flow_for_its_children(driver: Driver) -> None:
    flow = await new_flow(driver.engine, "a")
    assert await driver.engine.flows.children_flow(flow.ids["a"]) == flow.flow_id
    missing = for_flow(driver.engine.deps.counts, flow.flow_id, flow_id())
    with refused(ExecutionNotFound):
        await driver.engine.flows.children_flow(missing)


async def test_concurrent_calls_agree_on_the_flow(driver: Driver) -> None:
    parent = await driver.submit()
    answers = await asyncio.gather(*(driver.engine.flows.children_flow(parent) for _ in range(5)))
    assert len(set(answers)) == 1
    page = await driver.engine.flow_reads.list_flows(partition_of(parent))
    assert [one.flow_id for one in page.items] == [answers[0]], "nobody left an empty flow behind"


async def test_a_repeated_step_finds_its_children_again(driver: Driver) -> None:
    await driver.submit()
    held = (await driver.claim()).proof
    own = await driver.engine.flows.children_flow(held.execution_id)
    asked = Submission(kind="work", flow_id=own, idempotency_key="spawn:0", lane="children")
    child = await driver.engine.executions.create(asked)
    again = await driver.engine.executions.create(asked)
    assert (child.is_new, again.is_new) == (True, False)
    assert again.execution_id == child.execution_id
    done = await driver.engine.outcomes.wait_for_children(held, (child.execution_id,))
    assert done.public_state == "waiting_children"
    await driver.engine.outcomes.complete((await driver.take(child.execution_id)).proof)
    resumed = await driver.claim()
    assert (resumed.execution_id, resumed.kind) == (held.execution_id, "resumed")
    await driver.engine.outcomes.complete(resumed.proof)
    assert len(await driver.events("flow")) == 1


async def test_a_parent_resumes_although_its_child_was_cancelled(driver: Driver) -> None:
    parent = await driver.submit()
    held = (await driver.take(parent)).proof
    own = await driver.engine.flows.children_flow(parent)
    child = await driver.submit(flow_id=own, delay_until=LATER)
    await driver.engine.outcomes.wait_for_children(held, (child,))
    stored = (await driver.engine.deps.store.backend.flows([own]))[0]
    assert stored is not None
    assert (stored.edge_count, stored.graph_revision) == (1, 3)
    await driver.engine.outcomes.cancel(unfenced(child), "not needed")
    assert (await driver.record(parent)).state == "waiting"
