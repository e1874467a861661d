"""Moves of waiting work: block, hold, release, unblock, promote, evaluate, change priority."""

from typing import Any

import pytest

from flowfabric.errors import (
    DepsNotSatisfied,
    ExecutionNotActive,
    ExecutionNotEligible,
    ExecutionNotFound,
    FlowFabricError,
    InvalidBlockingReason,
    InvalidInput,
    NotBlockedByDeps,
    NotRunnable,
)
from flowfabric.operations.executions import Executions, GrantOrder
from tests.conformance.driver import (
    EVERYWHERE,
    FINAL,
    HELD,
    LIVE,
    NOWHERE,
    RETRIES,
    RUNNABLE,
    TRANSIENT,
    Driver,
    refused,
    unfenced,
)
from tests.conformance.graphs import Graph, Member, chain
from tests.proofs import proves

# (reason asked for, reason stored, public state, when the timer looks again)
BLOCKS = [
    ("waiting_for_budget", "budget", "rate_limited", 5_000),
    ("waiting_for_quota", "quota", "rate_limited", 5_000),
    ("waiting_for_capable_worker", "route", "waiting", 5_000),
    ("paused_by_operator", "operator", "waiting", None),
    ("paused_by_policy", "lane_state", "waiting", None),
]
WAITING = ("waiting", "handed_back")


# ---- block


@pytest.mark.parametrize(("asked", "reason", "public", "look"), BLOCKS)
async def test_blocking_takes_work_out_of_the_queue(
    driver: Driver, asked: str, reason: str, public: str, look: int | None
) -> None:
    held = await driver.reach("handed_back")
    driver.clock.advance(3)
    await driver.engine.scheduling.block(held.execution_id, asked, "for a reason")
    record, now = await driver.record(held.execution_id), driver.clock()
    assert (record.state, record.reason, record.next) == ("blocked", reason, "resume")
    assert (record.detail, record.moved_at) == ("for a reason", now)
    assert record.wake_at == (now + look if look else 0)
    assert record.due_at == record.wake_at
    assert await driver.engine.reads.read_execution_state(held.execution_id) == public
    assert await driver.claim_all() == []
    assert [entry.kind for entry in await driver.events()] == ["acquired", "released"]


@pytest.mark.parametrize(("asked", "reason", "public", "look"), BLOCKS)
async def test_a_caller_may_say_when_to_look_again(
    driver: Driver, asked: str, reason: str, public: str, look: int | None
) -> None:
    """Except where only people lift the hold: nobody looks at those."""
    execution_id = await driver.submit()
    await driver.engine.scheduling.block(execution_id, asked, look_in_ms=77)
    expected = driver.clock() + 77 if look else 0
    assert (await driver.record(execution_id)).wake_at == expected
    await driver.pass_time(10_000)
    assert (await driver.record(execution_id)).state == (
        "waiting" if reason in ("budget", "quota") else "blocked"
    )


async def test_blocking_drops_a_grant(driver: Driver) -> None:
    execution_id = await driver.submit()
    order = GrantOrder(worker_id="pool", worker_instance_id="pool-1")
    await driver.engine.grants.issue(execution_id, order)
    await driver.engine.scheduling.block(execution_id, "paused_by_operator")
    record = await driver.record(execution_id)
    assert (record.grant_id, record.grant_until, record.due_at) == ("", 0, 0)


BLOCK_REFUSALS: list[tuple[str, type[FlowFabricError]]] = [
    *((situation, ExecutionNotActive) for situation in FINAL),
    *((situation, ExecutionNotEligible) for situation in LIVE if situation not in WAITING),
    *((situation, InvalidBlockingReason) for situation in WAITING),
]


@pytest.mark.parametrize(("situation", "error"), BLOCK_REFUSALS)
async def test_the_state_is_judged_before_the_reason(
    driver: Driver, situation: str, error: type[FlowFabricError]
) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    reasons = ["boredom", "waiting_for_children"]
    if situation not in WAITING:
        reasons.append("paused_by_operator")
    for reason in reasons:
        with refused(error):
            await driver.engine.scheduling.block(held.execution_id, reason)
    assert await driver.snapshot() == before


async def test_blocking_what_is_not_there_is_an_error(driver: Driver) -> None:
    with refused(ExecutionNotFound):
        await driver.engine.scheduling.block(NOWHERE, "paused_by_operator")
    with refused(ExecutionNotFound):
        await driver.engine.scheduling.block(NOWHERE, "boredom")


@pytest.mark.parametrize(
    "fields",
    [{"look_in_ms": -1}, {"look_in_ms": True}, {"look_in_ms": 0.5}, {"detail": "x" * 4_097}],
)
async def test_a_bad_block_is_refused(driver: Driver, fields: dict[str, Any]) -> None:
    execution_id = await driver.submit()
    with refused(InvalidInput):
        await driver.engine.scheduling.block(execution_id, "waiting_for_budget", **fields)
    assert (await driver.record(execution_id)).state == "waiting"


# ---- hold and release


@proves(Executions.hold, Executions.release)
async def test_a_held_execution_runs_only_after_its_release(driver: Driver) -> None:
    held = await driver.reach("handed_back")
    operators, execution_id = driver.engine.operators, held.execution_id
    assert (await operators.hold(execution_id, "ask Ada first")).outcome == "held"
    record = await driver.record(execution_id)
    assert (record.state, record.reason, record.detail) == ("blocked", "operator", "ask Ada first")
    await driver.pass_time(3_600_000)
    assert await driver.claim_all() == []
    assert (await operators.release(execution_id)).outcome == "released"
    assert (await driver.claim()).record.execution_id == execution_id


async def test_holding_again_changes_nothing(driver: Driver) -> None:
    execution_id = await driver.submit()
    await driver.engine.operators.hold(execution_id, "first")
    before = await driver.snapshot()
    await driver.engine.operators.hold(execution_id, "second")
    assert await driver.snapshot() == before


@pytest.mark.parametrize("situation", [one for one in EVERYWHERE if one not in WAITING])
async def test_only_waiting_work_is_held(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    is_held = (await driver.record(held.execution_id)).reason == "operator"
    before = await driver.snapshot()
    if is_held:
        await driver.engine.operators.hold(held.execution_id)
    else:
        with refused(ExecutionNotActive if situation in FINAL else ExecutionNotEligible):
            await driver.engine.operators.hold(held.execution_id)
    assert await driver.snapshot() == before


@pytest.mark.parametrize("asked", [block[0] for block in BLOCKS if block[1] != "operator"])
async def test_a_release_lifts_nothing_but_a_hold(driver: Driver, asked: str) -> None:
    execution_id = await driver.submit()
    with refused(ExecutionNotEligible):
        await driver.engine.operators.release(execution_id)
    await driver.engine.scheduling.block(execution_id, asked)
    with refused(ExecutionNotEligible):
        await driver.engine.operators.release(execution_id)


async def test_a_hold_of_nothing_or_without_end_is_refused(driver: Driver) -> None:
    with refused(ExecutionNotFound):
        await driver.engine.operators.hold(NOWHERE)
    with refused(ExecutionNotFound):
        await driver.engine.operators.release(NOWHERE)
    with refused(InvalidInput):
        await driver.engine.operators.hold(await driver.submit(), "x" * 4_097)


# ---- unblock


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("asked", [block[0] for block in BLOCKS])
async def test_unblocking_returns_work_to_the_queue(
    driver: Driver, asked: str, named: bool
) -> None:
    held = await driver.reach("handed_back")
    await driver.engine.scheduling.block(held.execution_id, asked, "why", look_in_ms=9)
    await driver.engine.scheduling.unblock(held.execution_id, asked if named else "")
    record = await driver.record(held.execution_id)
    assert (record.state, record.reason, record.next) == ("waiting", "", "resume")
    assert (record.detail, record.wake_at, record.due_at) == ("", 0, 0)
    assert (await driver.claim()).kind == "resumed"


@pytest.mark.parametrize("situation", [each for each in EVERYWHERE if each != "blocked"])
async def test_only_a_hold_can_be_lifted(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    for expected in ("", "paused_by_operator", "boredom"):
        with refused(ExecutionNotEligible):
            await driver.engine.scheduling.unblock(held.execution_id, expected)
    assert await driver.snapshot() == before


@pytest.mark.parametrize("expected", ["waiting_for_budget", "paused_by_policy", "boredom"])
async def test_a_stale_unblock_is_refused(driver: Driver, expected: str) -> None:
    held = await driver.reach("blocked")
    before = await driver.snapshot()
    with refused(ExecutionNotEligible):
        await driver.engine.scheduling.unblock(held.execution_id, expected)
    assert await driver.snapshot() == before


@pytest.mark.parametrize(
    ("expected", "allowed"), [(block[0], block[3] is not None) for block in BLOCKS]
)
async def test_only_limits_and_routes_are_lifted_automatically(
    driver: Driver, expected: str, allowed: bool
) -> None:
    execution_id = await driver.submit()
    await driver.engine.scheduling.block(execution_id, expected)
    if allowed:
        await driver.engine.scheduling.unblock(execution_id, expected, automatic=True)
        assert (await driver.record(execution_id)).state == "waiting"
    else:
        with refused(InvalidBlockingReason):
            await driver.engine.scheduling.unblock(execution_id, expected, automatic=True)
        assert (await driver.record(execution_id)).state == "blocked"


async def test_unblocking_what_is_not_there_is_an_error(driver: Driver) -> None:
    for expected in ("", "paused_by_operator", "boredom"):
        with refused(ExecutionNotFound):
            await driver.engine.scheduling.unblock(NOWHERE, expected)
    with refused(InvalidInput):
        await driver.engine.scheduling.unblock("7")


# ---- promote delayed

PROMOTIONS = [
    *((situation, "not_runnable_cleaned") for situation in (*HELD, "suspended", *FINAL)),
    *(
        (situation, "not_delayed_cleaned")
        for situation in ("waiting", "blocked", "waiting_children", "handed_back", "parked")
    ),
    *((situation, "not_yet_due") for situation in ("delayed", "backoff", "paused")),
]


@pytest.mark.parametrize(("situation", "answer"), PROMOTIONS)
async def test_a_promotion_says_why_there_is_nothing_to_do(
    driver: Driver, situation: str, answer: str
) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    assert await driver.engine.scheduling.promote_delayed(held.execution_id) == answer
    assert await driver.snapshot() == before


@pytest.mark.parametrize(
    ("situation", "following"), [("delayed", "first"), ("backoff", "retry"), ("paused", "resume")]
)
async def test_a_promotion_keeps_what_the_next_claim_is(
    driver: Driver, situation: str, following: str
) -> None:
    held = await driver.reach(situation)
    driver.clock.advance(60_000)
    assert await driver.engine.scheduling.promote_delayed(held.execution_id) == "promoted"
    record = await driver.record(held.execution_id)
    assert (record.state, record.reason, record.next) == ("waiting", "", following)
    assert (record.wake_at, record.due_at) == (0, 0)
    answer = await driver.engine.scheduling.promote_delayed(held.execution_id)
    assert answer == "not_delayed_cleaned"


async def test_promoting_what_is_not_there_is_no_error(driver: Driver) -> None:
    assert await driver.engine.scheduling.promote_delayed(NOWHERE) == "not_found_cleaned"


# ---- promote blocked, evaluate


PROMOTE_BLOCKED: list[tuple[str, type[FlowFabricError]]] = [
    *((situation, NotRunnable) for situation in (*HELD, "suspended", *FINAL)),
    *(
        (situation, NotBlockedByDeps)
        for situation in RUNNABLE
        if situation not in ("waiting_children", "parked")
    ),
    ("waiting_children", DepsNotSatisfied),
    ("parked", DepsNotSatisfied),
]


@pytest.mark.parametrize(("situation", "error"), PROMOTE_BLOCKED)
async def test_a_member_is_promoted_only_past_met_dependencies(
    driver: Driver, situation: str, error: type[FlowFabricError]
) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    with refused(error) as caught:
        await driver.engine.scheduling.promote_blocked_to_eligible(held.execution_id)
    if error is DepsNotSatisfied:
        assert caught.value.details == {"unsatisfied": 1, "unresolved": 1}
    assert await driver.snapshot() == before


async def test_open_dependencies_are_counted(driver: Driver) -> None:
    flow = await driver.graph(Graph(arrows=[(name, "d") for name in "abc"]))
    await flow.complete("a")
    with refused(DepsNotSatisfied) as caught:
        await driver.engine.scheduling.promote_blocked_to_eligible(flow.ids["d"])
    assert caught.value.details == {"unsatisfied": 2, "unresolved": 2}


@pytest.mark.parametrize(("delay", "state"), [(0, "waiting"), (60_000, "delayed")])
async def test_a_member_that_waits_for_nothing_is_promoted(
    driver: Driver, delay: int, state: str
) -> None:
    member = Member(waits=True, delay_until=driver.clock() + delay)
    flow = await driver.graph(Graph(members={"a": member}))
    assert (await flow.record("a")).state == "blocked"
    await driver.engine.scheduling.promote_blocked_to_eligible(flow.ids["a"])
    record = await flow.record("a")
    assert (record.state, record.next) == (state, "first")
    with refused(NotBlockedByDeps):
        await driver.engine.scheduling.promote_blocked_to_eligible(flow.ids["a"])


async def test_promoting_a_member_that_is_not_there_is_an_error(driver: Driver) -> None:
    with refused(ExecutionNotFound):
        await driver.engine.scheduling.promote_blocked_to_eligible(NOWHERE)


async def test_eligibility_follows_the_dependencies(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b", "c"))
    alone = await driver.submit()

    async def evaluated(name: str) -> str:
        return await driver.engine.scheduling.evaluate_flow_eligibility(flow.ids[name])

    assert await driver.engine.scheduling.evaluate_flow_eligibility(NOWHERE) == "not_found"
    assert await driver.engine.scheduling.evaluate_flow_eligibility(alone) == "eligible"
    assert [await evaluated(name) for name in "abc"] == [
        "eligible",
        "blocked_by_dependencies",
        "blocked_by_dependencies",
    ]
    await flow.complete("a")
    assert [await evaluated(name) for name in "ab"] == ["not_runnable", "eligible"]
    await flow.fail("b")
    assert [await evaluated(name) for name in "bc"] == ["not_runnable", "not_runnable"]


@pytest.mark.parametrize("situation", [*HELD, "suspended", *FINAL])
async def test_what_is_not_runnable_is_not_eligible(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    assert (
        await driver.engine.scheduling.evaluate_flow_eligibility(held.execution_id)
        == "not_runnable"
    )


# ---- change priority


@proves(Executions.set_priority)
@pytest.mark.parametrize("situation", RUNNABLE)
async def test_priority_changes_in_every_runnable_state(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    before = await driver.record(held.execution_id)
    answer = await driver.engine.operators.change_priority(held.execution_id, 7)
    record = await driver.record(held.execution_id)
    assert answer == (0, 7)
    assert (record.priority, record.rank) == (7, before.rank - 7 * 10**12)
    assert (record.state, record.moved_at) == (before.state, before.moved_at)
    (event,) = await driver.events("operator")
    assert (event.kind, event.execution_id) == ("priority_changed", held.execution_id)
    assert event.details == {"old_priority": "0", "new_priority": "7"}


@pytest.mark.parametrize("situation", [*HELD, "suspended", *FINAL])
async def test_priority_is_fixed_once_the_work_has_begun(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    with refused(ExecutionNotEligible):
        await driver.engine.operators.change_priority(held.execution_id, 7)
    assert await driver.snapshot() == before


@pytest.mark.parametrize(
    ("given", "stored"), [(-1, 0), (9_000, 9_000), (9_001, 9_000), (10**30, 9_000)]
)
async def test_a_new_priority_is_clamped(driver: Driver, given: int, stored: int) -> None:
    execution_id = await driver.submit(priority=3)
    answer = await driver.engine.operators.change_priority(execution_id, given)
    assert answer == (3, stored)
    assert (await driver.record(execution_id)).priority == stored


@pytest.mark.parametrize("priority", ["7", 7.0, True, None, float("nan")])
async def test_a_priority_is_a_whole_number(driver: Driver, priority: Any) -> None:
    for execution_id in (await driver.submit(), NOWHERE):
        with refused(InvalidInput):
            await driver.engine.operators.change_priority(execution_id, priority)


async def test_changing_the_priority_of_nothing_is_an_error(driver: Driver) -> None:
    with refused(ExecutionNotFound):
        await driver.engine.operators.change_priority(NOWHERE, 1)


async def test_a_new_priority_moves_waiting_work_at_once(driver: Driver) -> None:
    first, second = await driver.submit(), await driver.submit()
    low, high = sorted([first, second])
    await driver.engine.operators.change_priority(high, 1)
    claimed = await driver.claim_all(n=2)
    assert [each.execution_id for each in claimed] == [high, low]


async def test_a_new_priority_counts_once_delayed_work_waits(driver: Driver) -> None:
    late = await driver.submit(delay_until=driver.clock() + 100)
    early = await driver.submit()
    await driver.engine.operators.change_priority(late, 1)
    assert [each.execution_id for each in await driver.claim_all()] == [early]
    await driver.submit()
    await driver.pass_time(100)
    assert [each.execution_id for each in await driver.claim_all()] == [late]


async def test_a_released_member_keeps_the_delay_that_lies_ahead(driver: Driver) -> None:
    ahead = driver.clock() + 10_000
    graph = Graph(arrows=[("a", "b")], members={"b": Member(delay_until=ahead)})
    flow = await driver.graph(graph)
    assert (await flow.record("b")).wake_at == ahead
    await flow.complete("a")
    record = await flow.record("b")
    assert (record.state, record.reason, record.next) == ("delayed", "delay", "first")
    assert record.wake_at == ahead
    await driver.pass_time(10_000)
    assert (await flow.record("b")).state == "waiting"


async def test_retries_keep_their_kind_while_blocked(driver: Driver) -> None:
    held = (await driver.started(policy=RETRIES)).proof
    await driver.engine.outcomes.fail(held, TRANSIENT)
    await driver.pass_time(500)
    await driver.engine.scheduling.block(held.execution_id, "paused_by_operator")
    await driver.engine.scheduling.unblock(held.execution_id)
    claimed = await driver.claim()
    assert claimed.record.attempt_type == "retry"
    await driver.engine.outcomes.cancel(unfenced(held.execution_id), "enough")
