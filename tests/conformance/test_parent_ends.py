"""What the end of a parent does to its children, and who may be a child."""

from typing import Any
from uuid import uuid4

import pytest

from flowfabric.core import apply, settle
from flowfabric.core.ids import compose, partition_of
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotEligible,
    ExecutionNotInFlow,
    InvalidInput,
    PartitionMismatch,
    StaleLease,
)
from flowfabric.operations.attempts import CancelChildren, HeldAttempts
from flowfabric.operations.execution_queries import Child, ExecutionQueries
from flowfabric.operations.executions import Executions
from flowfabric.operations.flows import Flows
from tests.conformance.driver import PERMANENT, TRANSIENT, Driver, refused, unfenced
from tests.conformance.graphs import FlowUnderTest, Graph, Member
from tests.proofs import proves

FENCE = ("execution_id", "lease_id", "lease_epoch", "attempt_id")
ROOT = Graph(members={"root": Member()})


class Family:
    """A root in a flow of its own, and those below it, by name."""

    def __init__(self, driver: Driver, flow: FlowUnderTest) -> None:
        self.driver = driver
        self.flow = flow
        self.ids = dict(flow.ids)

    async def add(self, name: str, parent: str = "root", **fields: Any) -> str:
        parent_round = (await self.record(parent)).round
        asked: dict[str, Any] = {
            "flow_id": self.flow.flow_id,
            "parent_id": self.ids[parent],
            "parent_round": parent_round,
        }
        self.ids[name] = await self.driver.submit(**(asked | fields))
        return self.ids[name]

    async def record(self, name: str) -> Any:
        return await self.driver.record(self.ids[name])

    async def states(self, *names: str) -> list[str]:
        return [(await self.record(name)).state for name in names or self.ids]

    async def cancel(self, name: str, reason: str = "enough") -> None:
        await self.driver.engine.outcomes.cancel(
            unfenced(self.ids[name], "operator_override"), reason
        )

    async def fail(self, name: str) -> None:
        held = (await self.driver.take(self.ids[name])).proof
        await self.driver.engine.outcomes.fail(held, PERMANENT)


async def family(driver: Driver, graph: Graph = ROOT) -> Family:
    return Family(driver, await driver.graph(graph))


async def small_family(driver: Driver) -> Family:
    """A root, two children, and one of theirs."""
    found = await family(driver)
    await found.add("left")
    await found.add("right")
    await found.add("grandchild", "left")
    return found


# ---- the cascade


async def test_children_end_with_a_cancelled_parent(driver: Driver) -> None:
    found = await small_family(driver)
    await found.cancel("root", "no longer needed")
    assert await found.states() == ["cancelled"] * 4
    child, grandchild = await found.record("left"), await found.record("grandchild")
    assert (child.cancelled_by, child.cancellation_reason) == (
        "parent_end",
        "parent cancelled: no longer needed",
    )
    assert grandchild.cancelled_by == "parent_end"
    assert grandchild.cancellation_reason == (
        "parent cancelled: parent cancelled: no longer needed"
    )
    flow = await found.flow.flow()
    assert (flow.counts, flow.child_counts) == ({"cancelled": 4}, {"cancelled": 3})
    assert (bool(flow.finished_at), flow.unsettled) == (True, ())
    assert sorted(await driver.completions()) == sorted(
        (own, "cancelled") for own in found.ids.values()
    )


async def test_children_end_with_a_failed_parent(driver: Driver) -> None:
    found = await small_family(driver)
    await found.fail("root")
    assert await found.states() == ["failed", "cancelled", "cancelled", "cancelled"]
    assert (await found.record("right")).cancellation_reason == "parent failed: broken"


async def test_children_end_with_an_expired_parent(driver: Driver) -> None:
    members = {"root": Member(deadline_at=driver.clock() + 99)}
    found = await family(driver, Graph(members=members))
    await found.add("child")
    await driver.pass_time(99)
    assert await found.states() == ["expired", "cancelled"]
    assert (await found.record("child")).cancellation_reason == "parent expired: execution_deadline"


async def test_children_end_with_a_skipped_parent(driver: Driver) -> None:
    found = await family(driver, Graph(arrows=[("top", "root")]))
    await found.add("child")
    await found.fail("top")
    assert await found.states("root", "child") == ["skipped", "cancelled"]
    reason = (await found.record("child")).cancellation_reason
    assert reason == "parent skipped: dependency_impossible"


async def test_children_end_with_a_cancelled_sibling(driver: Driver) -> None:
    """A member that loses a race takes its children along."""
    graph = Graph(
        arrows=[("root", "end"), ("winner", "end")],
        groups={"end": {"policy": "any_of", "k": 1, "on_satisfied": "cancel_remaining"}},
    )
    found = await family(driver, graph)
    await found.add("child")
    await found.flow.complete("winner")
    assert await found.states("root", "child", "end") == ["cancelled", "cancelled", "waiting"]
    reason = (await found.record("child")).cancellation_reason
    assert reason == "parent cancelled: sibling_quorum_satisfied"


async def test_a_running_child_is_cancelled_too(driver: Driver) -> None:
    found = await family(driver)
    child = await found.add("child")
    held = (await driver.take(child)).proof
    await found.fail("root")
    await driver.assert_released(held)
    (attempt,) = await driver.attempts(child)
    assert (attempt.state, attempt.closed_reason) == ("ended_cancelled", "attempt_cancelled")


async def test_children_of_a_completed_parent_live_on(driver: Driver) -> None:
    found = await small_family(driver)
    await found.flow.complete("root")
    assert await found.states() == ["completed", "waiting", "waiting", "waiting"]
    assert (await found.flow.flow()).finished_at == 0


async def test_a_child_that_is_to_be_left_lives_on(driver: Driver) -> None:
    found = await family(driver)
    await found.add("kept", on_parent_end="leave")
    await found.add("bound", on_parent_end="cancel")
    await found.add("below", "kept")
    await found.cancel("root")
    assert await found.states("kept", "bound", "below") == ["waiting", "cancelled", "waiting"]


async def test_what_ended_before_stays_as_it_is(driver: Driver) -> None:
    found = await family(driver)
    await found.add("done")
    held = (await driver.take(found.ids["done"])).proof
    await driver.engine.outcomes.complete(held)
    await found.cancel("root")
    assert await found.states() == ["cancelled", "completed"]


async def test_a_retry_a_pause_and_a_lost_lease_end_no_child(driver: Driver) -> None:
    policy = {"retry_policy": {"max_retries": 3, "backoff": {"type": "fixed", "delay_ms": 500}}}
    found = await family(driver, Graph(members={"root": Member(policy=policy)}))
    await found.add("child")
    held = (await driver.take(found.ids["root"])).proof
    await driver.engine.outcomes.fail(held, TRANSIENT)
    assert await found.states() == ["delayed", "waiting"]
    await driver.pass_time(500)
    await driver.suspend((await driver.take(found.ids["root"])).proof)
    assert await found.states() == ["suspended", "waiting"]
    await driver.engine.operators.resume(found.ids["root"])
    await driver.take(found.ids["root"], lease_ms=1_000)
    await driver.pass_time(1_000)
    assert await found.states() == ["lost", "waiting"]


async def test_a_child_with_another_parent_is_not_touched(driver: Driver) -> None:
    """A key of the user's own may find the child of somebody else."""
    found = await family(driver, Graph(members={"root": Member(), "other": Member()}))
    policy = {"dedup_window_ms": 60_000}
    first = await found.add("shared", "other", idempotency_key="mine", policy=policy)
    assert await found.add("shared", "root", idempotency_key="mine", policy=policy) == first
    await found.cancel("root")
    assert await found.states("other", "shared") == ["waiting", "waiting"]
    await found.cancel("other")
    assert await found.states("shared") == ["cancelled"]


async def test_a_long_reason_is_handed_on_as_it_is(driver: Driver) -> None:
    found = await family(driver)
    await found.add("child")
    await found.add("grandchild", "child")
    await found.cancel("root", "é" * 2_045)
    child, grandchild = await found.record("child"), await found.record("grandchild")
    assert child.cancellation_reason == "parent cancelled: " + "é" * 2_045
    assert grandchild.cancellation_reason == child.cancellation_reason


# ---- who may be a child


async def test_an_ended_parent_gets_no_more_children(driver: Driver) -> None:
    found = await family(driver)
    await found.cancel("root")
    with refused(ExecutionNotActive):
        await found.add("child")
    assert (await found.flow.flow()).node_count == 1


async def test_a_replayed_parent_gets_no_children_of_the_round_before(driver: Driver) -> None:
    found = await family(driver)
    await found.fail("root")
    await driver.engine.operators.replay(found.ids["root"])
    assert (await found.record("root")).round == 1
    with refused(StaleLease):
        await found.add("child", parent_round=0)
    await found.add("child")
    assert (await found.record("child")).parent_round == 1


async def test_a_parent_is_a_member_of_the_flow(driver: Driver) -> None:
    found, other = await family(driver), await driver.submit()
    partition = partition_of(found.ids["root"])
    nobody = compose(partition, str(uuid4()))
    for parent, error in ((nobody, InvalidInput), ("no id", InvalidInput)):
        with refused(error):
            await found.add("child", parent_id=parent)
    with refused(InvalidInput):
        await driver.submit(parent_id=other)
    elsewhere = compose((partition + 1) % 256, str(uuid4()))
    with refused(PartitionMismatch):
        await found.add("child", parent_id=elsewhere)
    with refused(InvalidInput):
        await found.add("child", on_parent_end="shrug")
    with refused(InvalidInput):
        await driver.submit(on_parent_end="shrug")


# ---- operators


@proves(Executions.replay)
async def test_a_child_is_replayed_once_its_parent_has_ended(driver: Driver) -> None:
    found = await family(driver)
    await found.add("child")
    await found.fail("child")
    with refused(ExecutionNotEligible):
        await driver.engine.operators.replay(found.ids["child"])
    await found.fail("root")
    await driver.engine.operators.replay(found.ids["child"])
    assert await found.states() == ["failed", "waiting"]


@proves(Flows.replay_flow)
async def test_a_replayed_flow_leaves_children_to_their_parents(driver: Driver) -> None:
    found = await family(driver)
    await found.add("child")
    await found.fail("root")
    replayed = await driver.engine.flow_operators.replay_flow(found.flow.flow_id)
    assert [one.execution_id for one in replayed.items] == [found.ids["root"]]
    assert await found.states() == ["waiting", "cancelled"]


@proves(ExecutionQueries.describe_execution)
async def test_readers_see_parent_children_and_flow(driver: Driver) -> None:
    found = await family(driver)
    for number in range(3):
        driver.clock.advance(1)
        await found.add(f"child-{number}")
    await found.fail("child-1")
    info = await driver.engine.reads.describe_execution(found.ids["root"])
    children = tuple(
        Child(found.ids[f"child-{number}"], state)
        for number, state in enumerate(("waiting", "failed", "waiting"))
    )
    assert (info.children, info.more_children, info.parent_id) == (children, False, "")
    explained = await driver.engine.explanations.explain(found.ids["root"])
    assert (explained.children, explained.flow_id) == (children, found.flow.flow_id)
    child = await driver.engine.reads.describe_execution(found.ids["child-1"])
    assert (child.parent_id, child.flow_id) == (found.ids["root"], found.flow.flow_id)
    assert child.children == ()


async def test_a_flow_is_what_its_members_without_parent_are(driver: Driver) -> None:
    """A child that failed and was caught does not make the flow failed."""
    found = await family(driver)
    await found.add("child")
    await found.fail("child")
    await found.flow.complete("root")
    described = await driver.engine.flow_reads.describe_flow(found.flow.flow_id)
    assert described is not None
    assert described.public_flow_state == "completed"
    (finished,) = await driver.events("flow")
    assert finished.details == {"state": "completed"}


# ---- in small steps


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "EDGES_PER_STEP", 3)
    monkeypatch.setattr(settle, "PAGE", 3)
    monkeypatch.setattr(apply, "MEMBERS_PER_STEP", 3)


async def settle_by_time(driver: Driver, found: Family) -> None:
    """As if the process that ended the parent had died: the flow's timer goes on."""
    for _ in range(40):
        if not (await found.flow.flow()).unsettled:
            return
        await driver.pass_time(1)
    raise AssertionError("the flow does not settle")


@pytest.mark.usefixtures("small_steps")
async def test_a_cascade_of_many_steps_ends_each_child_once(driver: Driver) -> None:
    found = await family(driver)
    for left in range(4):
        await found.add(f"{left}")
        for leaf in range(4):
            await found.add(f"{left}.{leaf}", f"{left}")
    await found.add("kept", on_parent_end="leave")
    await found.cancel("root")
    await settle_by_time(driver, found)
    ended = [name for name in found.ids if name != "kept"]
    assert set(await found.states(*ended)) == {"cancelled"}
    assert await found.states("kept") == ["waiting"]
    completions = await driver.completions()
    assert sorted(completions) == sorted((found.ids[name], "cancelled") for name in ended)


@pytest.mark.usefixtures("small_steps")
async def test_a_parent_replayed_during_the_cascade_keeps_its_new_children(
    driver: Driver,
) -> None:
    found = await family(driver)
    for number in range(9):
        await found.add(f"old-{number}")
    await found.fail("root")
    await driver.engine.operators.replay(found.ids["root"])
    await found.add("new")
    await settle_by_time(driver, found)
    await driver.engine.settling.drain()
    assert await found.states("root", "new") == ["waiting", "waiting"]
    assert set(await found.states(*(f"old-{number}" for number in range(9)))) == {"cancelled"}


@pytest.mark.usefixtures("small_steps")
@proves(Flows.cancel_flow)
async def test_a_cancelled_pending_parent_takes_its_running_children_along(
    driver: Driver,
) -> None:
    found = await family(driver)
    running = []
    for number in range(5):
        child = await found.add(f"running-{number}")
        running.append((await driver.take(child)).proof)
        await found.add(f"kept-{number}", on_parent_end="leave")
        await driver.take(found.ids[f"kept-{number}"])
    cancelled = await driver.engine.flow_operators.cancel_flow(
        found.flow.flow_id, "cancel_pending", "stop"
    )
    assert cancelled is not None
    await driver.engine.settling.drain()
    await settle_by_time(driver, found)
    assert set(await found.states(*(f"running-{number}" for number in range(5)))) == {"cancelled"}
    assert set(await found.states(*(f"kept-{number}" for number in range(5)))) == {"active"}
    assert (await found.record("running-0")).cancellation_reason == "parent cancelled: stop"


# ---- children that their parent gives up


@proves(HeldAttempts.cancel_children)
async def test_a_parent_cancels_its_own_children_once(driver: Driver) -> None:
    found = await small_family(driver)
    await found.add("leaf", "right")
    held = await driver.take(found.ids["root"])
    await driver.take(found.ids["left"])

    async def give_up(*names: str, **fence: Any) -> int:
        proof = {name: getattr(held.proof, name) for name in FENCE} | fence
        children = tuple(found.ids[name] for name in names)
        order = CancelChildren(**proof, children=children, reason="race lost")
        return (await driver.engine.held_children.cancel_children(order)).count

    with refused(StaleLease):
        await give_up("left", lease_id=str(uuid4()))
    for name in ("grandchild", "root"):
        with pytest.raises(ExecutionNotInFlow):
            await give_up("left", name)
    assert await found.states() == ["active", "active", "waiting", "waiting", "waiting"]
    assert await give_up("left") == 1
    assert await give_up("left", "right") == 1
    assert await give_up("left", "right") == 0
    assert await found.states() == ["active", *["cancelled"] * 4]
    record = await found.record("left")
    assert (record.cancellation_reason, record.cancelled_by) == ("race lost", "parent_end")
