"""Replay: a finished execution runs again, as a new attempt."""

from typing import Any

import pytest

from flowfabric.errors import (
    ExecutionNotFound,
    ExecutionNotTerminal,
    FlowAlreadyTerminal,
    InvalidInput,
    MaxReplaysExhausted,
)
from flowfabric.operations.executions import Executions
from tests.conformance.driver import (
    FINAL,
    LIVE,
    NOWHERE,
    PERMANENT,
    RETRIES,
    TRANSIENT,
    Driver,
    refused,
    unfenced,
)
from tests.conformance.graphs import Graph, Member, chain
from tests.proofs import proves

ENDED = [situation for situation in FINAL if situation != "skipped"]


async def replay(driver: Driver, execution_id: str, **fields: Any) -> str:
    return (await driver.engine.operators.replay(execution_id, **fields)).public_state


@proves(Executions.replay)
@pytest.mark.parametrize("situation", ENDED)
async def test_a_finished_execution_waits_again(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    before = await driver.record(held.execution_id)
    driver.clock.advance(10)
    assert await replay(driver, held.execution_id, reason="why", requested_by="ada") == "waiting"
    record, now = await driver.record(held.execution_id), driver.clock()
    assert (record.state, record.reason, record.next) == ("waiting", "", "replay")
    assert (record.replay_count, record.replay_reason) == (1, "why")
    assert (record.replay_requested_by, record.previous_attempt) == ("ada", 0)
    assert (record.retry_count, record.reclaim_count) == (0, 0)
    assert (record.completed_at, record.purge_at, record.moved_at) == (0, 0, now)
    assert (record.failure_reason, record.failure_category) == ("", "")
    assert (record.cancellation_reason, record.cancelled_by) == ("", "")
    assert (record.created_at, record.started_at) == (before.created_at, before.started_at)
    assert (record.attempt_count, record.lease_epoch) == (1, 1)
    assert record.rank == before.rank
    assert await driver.result(held.execution_id) is None
    claimed = await driver.claim()
    assert (claimed.record.attempt_index, claimed.record.lease_epoch) == (1, 2)


@pytest.mark.parametrize("situation", LIVE)
async def test_what_has_not_ended_is_not_replayed(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    with refused(ExecutionNotTerminal):
        await replay(driver, held.execution_id)
    assert await driver.snapshot() == before


async def test_replaying_what_is_not_there_is_an_error(driver: Driver) -> None:
    with refused(ExecutionNotFound):
        await replay(driver, NOWHERE)
    with refused(InvalidInput):
        await replay(driver, "7")
    with refused(InvalidInput):
        await replay(driver, NOWHERE, reason="x" * 4_097)
    with refused(InvalidInput):
        await replay(driver, NOWHERE, requested_by=7)


@pytest.mark.parametrize(("policy", "most"), [({}, 10), ({"max_replay_count": 2}, 2)])
async def test_replays_end_at_their_cap(
    driver: Driver, policy: dict[str, object], most: int
) -> None:
    held = await driver.reach("failed", policy=policy)
    for number in range(1, most + 1):
        await replay(driver, held.execution_id)
        claimed = await driver.claim()
        assert (claimed.record.replay_count, claimed.record.attempt_index) == (number, number)
        await driver.engine.outcomes.complete(claimed.proof)
    before = await driver.snapshot()
    with refused(MaxReplaysExhausted):
        await replay(driver, held.execution_id)
    assert await driver.snapshot() == before


async def test_a_cap_of_nothing_forbids_replays(driver: Driver) -> None:
    held = await driver.reach("completed", policy={"max_replay_count": 0})
    with refused(MaxReplaysExhausted):
        await replay(driver, held.execution_id)


async def test_a_replay_has_all_its_retries_and_reclaims_again(driver: Driver) -> None:
    policy = {"retry_policy": {"max_retries": 1}, "max_reclaim_count": 1}
    await driver.submit(policy=policy)
    await driver.claim(lease_ms=10)
    await driver.pass_time(10)
    await driver.engine.outcomes.fail((await driver.claim()).proof, TRANSIENT)
    await driver.pass_time(60_000)
    held = (await driver.claim()).proof
    await driver.engine.outcomes.fail(held, TRANSIENT)
    before = await driver.record(held.execution_id)
    assert (before.state, before.retry_count, before.reclaim_count) == ("failed", 1, 1)
    await replay(driver, held.execution_id)
    after = await driver.record(held.execution_id)
    assert (after.retry_count, after.reclaim_count) == (0, 0)
    done = await driver.engine.outcomes.fail((await driver.claim()).proof, TRANSIENT)
    assert (done.public_state, done.next_attempt_index) == ("delayed", 4)


async def test_a_deadline_counts_again_only_while_it_lies_ahead(driver: Driver) -> None:
    deadline = driver.clock() + 5_000
    ahead = await driver.reach("completed", deadline_at=deadline)
    past = await driver.reach("completed", deadline_at=driver.clock())
    await replay(driver, ahead.execution_id)
    await replay(driver, past.execution_id)
    assert (await driver.record(ahead.execution_id)).due_at == deadline
    assert (await driver.record(past.execution_id)).deadline_at == 0
    result = await driver.pass_time(5_000)
    assert result.of("execution_deadline") == 1
    assert (await driver.record(ahead.execution_id)).state == "expired"
    assert (await driver.record(past.execution_id)).state == "waiting"


async def test_the_input_stays_for_the_replay(driver: Driver) -> None:
    held = await driver.reach("completed", input=b"work")
    await replay(driver, held.execution_id)
    assert (await driver.claim()).input == b"work"


async def test_a_replay_tells_operators(driver: Driver) -> None:
    held = await driver.reach("completed")
    await replay(driver, held.execution_id)
    (event,) = await driver.events("operator")
    assert event.execution_id == held.execution_id
    assert event.details["branch"] == "normal"
    assert event.details["groups_reset"] == "0"


async def test_a_replay_is_not_repeatable(driver: Driver) -> None:
    held = await driver.reach("completed")
    await replay(driver, held.execution_id)
    with refused(ExecutionNotTerminal):
        await replay(driver, held.execution_id)


async def test_an_execution_cancelled_before_any_attempt_can_be_replayed(driver: Driver) -> None:
    execution_id = await driver.submit()
    await driver.engine.outcomes.cancel(unfenced(execution_id), "too early")
    await replay(driver, execution_id)
    claimed = await driver.claim()
    assert (claimed.record.attempt_type, claimed.record.attempt_index) == ("replay", 0)


# ---- members of flows


@pytest.mark.parametrize("policy", ["cancel_all", "cancel_pending", "flow_only"])
async def test_a_member_of_a_cancelled_flow_is_not_replayed(driver: Driver, policy: str) -> None:
    cancelled = {"cancelled_at": 1, "cancel_policy": policy}
    flow = await driver.graph(Graph(members={"a": Member()}, flow=cancelled))
    await driver.engine.outcomes.cancel(unfenced(flow.ids["a"]), "enough")
    before = await driver.snapshot()
    with refused(FlowAlreadyTerminal):
        await replay(driver, flow.ids["a"])
    assert await driver.snapshot() == before


async def test_the_cap_is_judged_before_the_flow(driver: Driver) -> None:
    member = Member(policy={"max_replay_count": 0})
    cancelled = {"cancelled_at": 1, "cancel_policy": "cancel_all"}
    flow = await driver.graph(Graph(members={"a": member}, flow=cancelled))
    with refused(ExecutionNotTerminal):
        await replay(driver, flow.ids["a"])
    await driver.engine.outcomes.cancel(unfenced(flow.ids["a"]), "enough")
    with refused(MaxReplaysExhausted):
        await replay(driver, flow.ids["a"])


async def test_a_replayed_member_opens_its_flow_again(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    await flow.complete("a", "b")
    assert (await flow.flow()).counts == {"completed": 2}
    await replay(driver, flow.ids["a"])
    stored = await flow.flow()
    assert (stored.counts, stored.finished_at) == ({"waiting": 1, "completed": 1}, 0)
    await flow.complete("a")
    assert (await flow.flow()).finished_at == driver.clock()
    assert len(await driver.events("flow")) == 2


async def test_edges_resolved_before_are_not_reopened_by_their_source(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    await flow.complete("a")
    await replay(driver, flow.ids["a"])
    await flow.fail("a")
    assert (await flow.states())["b"] == "waiting"
    assert (await flow.group("b")).state == "satisfied"


async def test_a_skipped_member_waits_for_its_failed_source_again(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    await flow.fail("a")
    assert await replay(driver, flow.ids["b"], reason="again") == "waiting_children"
    record = await flow.record("b")
    assert (record.state, record.reason, record.next) == ("blocked", "dependencies", "replay")
    assert record.detail == "1 dep(s) unsatisfied after replay"
    group = await flow.group("b")
    assert (group.state, group.succeeded, group.failed, group.skipped) == ("pending", 0, 0, 0)
    assert (await flow.edges_into("b"))["a"].state == "open"
    (event,) = await driver.events("operator")
    assert event.details["branch"] == "skipped_flow_member"
    assert event.details["groups_reset"] == "1"
    await replay(driver, flow.ids["a"])
    await flow.complete("a")
    assert (await flow.record("b")).state == "waiting"
    claimed = await flow.take("b")
    assert (claimed.record.attempt_type, claimed.record.attempt_index) == ("replay", 0)
    await driver.engine.outcomes.complete(claimed.proof)
    assert (await flow.flow()).counts == {"completed": 2}


async def test_a_skipped_member_whose_sources_completed_since_waits_for_nothing(
    driver: Driver,
) -> None:
    flow = await driver.graph(chain("a", "b"))
    await flow.fail("a")
    await replay(driver, flow.ids["a"])
    await flow.complete("a")
    assert (await flow.record("b")).state == "skipped"
    assert await replay(driver, flow.ids["b"]) == "waiting"
    group = await flow.group("b")
    assert (group.state, group.succeeded) == ("satisfied", 1)
    assert (await flow.edges_into("b"))["a"].state == "satisfied"
    await flow.complete("b")


async def test_satisfied_edges_stay_when_a_skipped_member_is_replayed(driver: Driver) -> None:
    flow = await driver.graph(Graph(arrows=[("a", "d"), ("b", "d"), ("c", "d")]))
    await flow.complete("a")
    await flow.fail("b", "c")
    assert await replay(driver, flow.ids["d"]) == "waiting_children"
    edges = await flow.edges_into("d")
    assert {name: edge.state for name, edge in edges.items()} == {
        "a": "satisfied",
        "b": "open",
        "c": "open",
    }
    record = await flow.record("d")
    assert record.detail == "2 dep(s) unsatisfied after replay"
    assert (await flow.group("d")).succeeded == 1


async def test_a_skipped_any_of_member_runs_after_one_source_was_replayed(driver: Driver) -> None:
    groups = {"c": {"policy": "any_of", "k": 1, "on_satisfied": "let_run"}}
    flow = await driver.graph(Graph(arrows=[("a", "c"), ("b", "c")], groups=groups))
    await flow.fail("a", "b")
    assert (await flow.record("c")).state == "skipped"
    await replay(driver, flow.ids["c"])
    await replay(driver, flow.ids["b"])
    await flow.complete("b")
    assert (await flow.record("c")).state == "waiting"


async def test_a_chain_of_skipped_members_is_replayed_from_the_top(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b", "c"))
    await flow.fail("a")
    assert await flow.states() == {"a": "failed", "b": "skipped", "c": "skipped"}
    for name in "abc":
        await replay(driver, flow.ids[name])
    await flow.complete("a", "b", "c")
    assert await flow.states() == {"a": "completed", "b": "completed", "c": "completed"}


async def test_a_retried_source_fails_its_replayed_target_again(driver: Driver) -> None:
    graph = Graph(arrows=[("a", "b")], members={"a": Member(policy=RETRIES)})
    flow = await driver.graph(graph)
    await flow.fail("a")
    await replay(driver, flow.ids["b"])
    await replay(driver, flow.ids["a"])
    claimed = await flow.take("a")
    await driver.engine.outcomes.fail(claimed.proof, PERMANENT)
    assert (await flow.record("b")).state == "skipped"
    group = await flow.group("b")
    assert (group.state, group.failed) == ("impossible", 1)
