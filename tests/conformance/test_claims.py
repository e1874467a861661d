"""One-step claims: what a lease writes, and which work is chosen."""

import pytest

from flowfabric.core.ids import partition_of
from flowfabric.core.record import NO_ATTEMPT
from flowfabric.engine.attempts.claimed import Claimed
from tests.conformance.driver import EVERYWHERE, RETRIES, TRANSIENT, Driver, unfenced
from tests.conformance.graphs import Graph, Member
from tests.conformance.limiting import take_for_known


def needs(*tokens: str) -> dict[str, object]:
    return {"routing_requirements": {"required_capabilities": list(tokens)}}


def ids(claimed: list[Claimed]) -> list[str]:
    return [each.execution_id for each in claimed]


# ---- what a lease writes


async def test_a_first_claim_begins_the_initial_attempt(driver: Driver) -> None:
    execution_id = await driver.submit(input=b"work", tags={"app.team": "red"})
    driver.clock.advance(5)
    claimed = await driver.claim(lease_ms=9_000)
    now, record = driver.clock(), claimed.record
    assert (claimed.execution_id, claimed.kind, claimed.input) == (execution_id, "fresh", b"work")
    assert (record.state, record.reason, record.next) == ("active", "", "")
    assert (record.lease_epoch, record.lease_ttl_ms) == (1, 9_000)
    assert (record.lease_acquired_at, record.lease_renewed_at) == (now, now)
    assert (record.lease_until, record.due_at) == (now + 9_000, now + 9_000)
    assert (record.worker_id, record.worker_instance_id) == ("pool", "pool-1")
    assert (record.started_at, record.moved_at, record.created_at) == (now, now, now - 5)
    assert (record.attempt_index, record.attempt_type, record.attempt_count) == (0, "initial", 1)
    assert (record.attempt_until, record.tags) == (0, {"app.team": "red"})
    (attempt,) = await driver.attempts(execution_id)
    assert (attempt.index, attempt.type, attempt.state) == (0, "initial", "started")
    assert (attempt.attempt_id, attempt.lease_id) == (record.attempt_id, record.lease_id)
    assert (attempt.started_at, attempt.previous_attempt) == (now, NO_ATTEMPT)
    assert await driver.record(execution_id) == record


async def test_a_retry_is_a_new_attempt_that_knows_the_failure(driver: Driver) -> None:
    first = await driver.started(policy=RETRIES)
    await driver.engine.outcomes.fail(first.proof, TRANSIENT)
    await driver.pass_time(500)
    second = await driver.claim()
    assert (second.kind, second.record.attempt_type) == ("fresh", "retry")
    assert (second.record.attempt_index, second.record.attempt_count) == (1, 2)
    assert second.record.attempt_id != first.record.attempt_id
    assert (second.record.retry_count, second.record.retry_reason) == (1, "")
    assert second.record.previous_attempt == NO_ATTEMPT
    assert second.record.started_at == first.record.started_at
    _, attempt = await driver.attempts(first.execution_id)
    assert (attempt.lineage_reason, attempt.previous_attempt) == ("flaky", 0)


async def test_a_resume_goes_on_with_the_same_attempt(driver: Driver) -> None:
    first = await driver.started(policy={"timeout_policy": {"attempt_timeout_ms": 10_000}})
    driver.clock.advance(4_000)
    await driver.engine.outcomes.delay(first.proof, for_ms=60_000)
    await driver.pass_time(60_000)
    second = await driver.claim(worker_id="others", worker_instance_id="others-1")
    now = driver.clock()
    assert second.kind == "resumed"
    assert (second.record.attempt_index, second.record.attempt_count) == (0, 1)
    assert second.record.attempt_id == first.record.attempt_id
    assert second.record.attempt_type == "initial"
    assert second.record.lease_id != first.record.lease_id
    assert second.record.lease_epoch == 2
    assert second.record.attempt_until == now + 6_000
    (attempt,) = await driver.attempts(first.execution_id)
    assert (attempt.state, attempt.resumed_at) == ("started", now)
    assert (attempt.suspended_at, attempt.suspension_id) == (0, "")
    assert (attempt.worker_id, attempt.lease_id) == ("others", second.record.lease_id)


@pytest.mark.parametrize("reason", ["lease_expired", "lease_revoked"])
async def test_a_reclaim_is_a_new_attempt_and_ends_the_lost_one(
    driver: Driver, reason: str
) -> None:
    lost = await driver.reach(
        reason, policy=RETRIES | {"timeout_policy": {"attempt_timeout_ms": 9}}
    )
    driver.clock.advance(7)
    claimed = await driver.claim()
    now, record = driver.clock(), claimed.record
    assert (claimed.execution_id, claimed.kind) == (lost.execution_id, "reclaimed")
    assert (record.attempt_type, record.attempt_index, record.lease_epoch) == ("reclaim", 1, 2)
    assert (record.reclaim_count, record.retry_count) == (1, 0)
    assert (record.lost_at, record.revoke_reason) == (0, "")
    assert record.attempt_until == now + 9
    old, new = await driver.attempts(lost.execution_id)
    assert (old.state, old.ended_at) == ("interrupted_reclaimed", now)
    assert (old.failure_reason, old.closed_reason) == (reason, "reclaimed")
    assert (new.type, new.lineage_reason, new.previous_attempt) == ("reclaim", reason, 0)


async def test_a_replay_is_a_new_attempt_that_knows_who_asked_for_it(driver: Driver) -> None:
    done = await driver.reach("completed")
    await driver.engine.operators.replay(done.execution_id, "bad data", "ada")
    claimed = await driver.claim()
    record = claimed.record
    assert (claimed.kind, record.attempt_type, record.attempt_index) == ("fresh", "replay", 1)
    assert (record.replay_reason, record.replay_requested_by) == ("", "")
    _, attempt = await driver.attempts(done.execution_id)
    assert (attempt.lineage_reason, attempt.lineage_requester) == ("bad data", "ada")
    assert attempt.previous_attempt == 0


async def test_a_replay_after_a_cancelled_retry_tells_of_the_replay_alone(driver: Driver) -> None:
    failed = await driver.reach("backoff")
    await driver.engine.outcomes.cancel(failed, "enough")
    await driver.engine.operators.replay(failed.execution_id, "again", "ada")
    await driver.claim()
    _, attempt = await driver.attempts(failed.execution_id)
    assert (attempt.type, attempt.lineage_reason) == ("replay", "again")


async def test_an_attempt_s_time_limit_counts_from_its_claim(driver: Driver) -> None:
    policy = {"timeout_policy": {"attempt_timeout_ms": 7_000}}
    claimed = await driver.started(policy=policy)
    assert claimed.record.attempt_until == driver.clock() + 7_000
    assert claimed.record.due_at == driver.clock() + 7_000


async def test_a_claim_may_leave_the_payload(driver: Driver) -> None:
    await driver.submit(input=b"large")
    assert (await driver.claim(payload=False)).input is None


async def test_inputs_past_the_reply_limit_are_deferred(driver: Driver) -> None:
    sent = [await driver.submit(input=bytes(1024 * 1024)) for _ in range(5)]
    claimed = await driver.claim_all(n=5)
    assert sorted(ids(claimed)) == sorted(sent)
    assert [each.input_deferred for each in claimed] == [False] * 4 + [True]
    assert [each.input is None for each in claimed] == [False] * 4 + [True]


# ---- order


async def test_priority_then_age_orders_a_lane(driver: Driver) -> None:
    async def submit(priority: int) -> str:
        driver.clock.advance(1)
        return await driver.submit(priority=priority)

    sent = {priority: await submit(priority) for priority in (1, 5, 0, 12_000)}
    old, young = await submit(3), await submit(3)
    order = [sent[12_000], sent[5], old, young, sent[1], sent[0]]
    assert ids(await driver.claim_all(n=10)) == order


async def test_equal_ranks_are_ordered_by_id(driver: Driver) -> None:
    sent = [await driver.submit() for _ in range(20)]
    assert ids(await driver.claim_all(n=20)) == sorted(sent)


async def test_rank_order_holds_over_all_partitions(driver: Driver) -> None:
    await driver.engine.lanes.configure("default", "default", shards=200)
    sent: list[tuple[int, int, str]] = []
    for i in range(120):
        driver.clock.advance(1)
        priority = i * 7 % 5
        execution_id = await driver.submit(priority=priority)
        sent.append((-priority, driver.clock(), execution_id))
    assert len({partition_of(execution_id) for _, _, execution_id in sent}) > 50
    claimed = [*await driver.claim_all(n=50), *await driver.claim_all(n=100)]
    assert ids(claimed) == [execution_id for _, _, execution_id in sorted(sent)]


@pytest.mark.parametrize("n", [1, 2, 5])
async def test_rank_order_holds_when_the_best_are_gone(driver: Driver, n: int) -> None:
    """Whatever a store remembers of where the best work was, it finds the best there is."""
    await driver.engine.lanes.configure("default", "default", shards=8)
    sent = []
    for _ in range(40):
        driver.clock.advance(1)
        sent.append(await driver.submit())
    for gone in sent[:20]:
        await driver.engine.outcomes.cancel(unfenced(gone, "operator_override"), "enough")
    claimed: list[str] = []
    while found := ids(await driver.claim_all(n=n)):
        claimed += found
    assert claimed == sent[20:]


async def test_requeued_work_keeps_its_age(driver: Driver) -> None:
    old = await driver.submit()
    driver.clock.advance(10)
    young = await driver.submit()
    claimed = await driver.claim()
    assert claimed.execution_id == old
    await driver.engine.outcomes.delay(claimed.proof, for_ms=0)
    assert ids(await driver.claim_all(n=2)) == [old, young]


async def test_lost_work_waits_among_the_others_by_rank(driver: Driver) -> None:
    lost = await driver.reach("lease_expired")
    urgent = await driver.submit(priority=1)
    late = await driver.submit()
    assert ids(await driver.claim_all(n=3)) == [urgent, lost.execution_id, late]


async def test_lanes_are_served_in_the_order_of_preference(driver: Driver) -> None:
    for lanes in (("a", "b"), ("b", "a")):
        later = await driver.submit(lane=lanes[1], priority=9)
        first = await driver.submit(lane=lanes[0])
        assert ids(await driver.claim_all(n=2, lanes=lanes)) == [first, later]
        assert await driver.claim_all(lanes=lanes) == []


async def test_only_the_asked_number_is_leased(driver: Driver) -> None:
    for _ in range(5):
        await driver.submit()
    assert len(await driver.claim_all(n=3)) == 3
    assert len(await driver.claim_all(n=3)) == 2
    assert await driver.claim_all(n=3) == []


async def test_only_waiting_and_lost_work_is_offered(driver: Driver) -> None:
    offered = {"waiting", "handed_back", "lease_expired", "lease_revoked"}
    # Reached first: it moves the clock on past the lease it takes.
    await driver.reach("unmarked")
    for situation in sorted(set(EVERYWHERE) - offered - {"unmarked"}):
        await driver.reach(situation)
    assert await driver.claim_all(n=100) == []


# ---- requirement sets


async def test_work_goes_only_to_workers_that_offer_what_it_requires(driver: Driver) -> None:
    plain = await driver.submit()
    gpu = await driver.submit(policy=needs("gpu"))
    both = await driver.submit(policy=needs("gpu", "eu"))
    assert ids(await driver.claim_all(n=9)) == [plain]
    assert ids(await driver.claim_all(n=9, capabilities=("eu",))) == []
    assert ids(await driver.claim_all(n=9, capabilities=("gpu",))) == [gpu]
    assert ids(await driver.claim_all(n=9, capabilities=("x", "eu", "gpu"))) == [both]


async def test_capabilities_compare_case_and_bytes(driver: Driver) -> None:
    execution_id = await driver.submit(policy=needs("gpü"))
    assert await driver.claim_all(capabilities=("GPÜ", "gpu")) == []
    assert ids(await driver.claim_all(capabilities=("gpü",))) == [execution_id]


async def test_rank_order_holds_over_requirement_sets(driver: Driver) -> None:
    sent = []
    for tokens in [(), ("a",), ("b",), ("a", "b"), ()] * 4:
        driver.clock.advance(1)
        sent.append(await driver.submit(policy=needs(*tokens)))
    assert ids(await driver.claim_all(n=20, capabilities=("a", "b"))) == sent


async def test_work_nobody_can_run_hides_nothing(driver: Driver) -> None:
    for _ in range(200):
        await driver.submit(policy=needs("rare"), priority=9)
    plain = await driver.submit()
    assert ids(await driver.claim_all(n=5)) == [plain]


# ---- namespaces, lanes, limits


async def test_nobody_gets_another_namespace_s_work(driver: Driver) -> None:
    here = await driver.submit()
    there = await driver.submit(namespace="other")
    assert ids(await driver.claim_all(n=9, namespace="other")) == [there]
    assert ids(await driver.claim_all(n=9)) == [here]


@pytest.mark.parametrize(
    ("state", "served"),
    [("active", True), ("paused", False), ("draining", True), ("disabled", False)],
)
async def test_a_lane_is_served_by_its_state(driver: Driver, state: str, served: bool) -> None:
    execution_id = await driver.submit()
    elsewhere = await driver.submit(namespace="other")
    await driver.engine.lanes.configure("default", "default", state=state)
    before = await driver.record(execution_id)
    assert ids(await driver.claim_all(n=9)) == ([execution_id] if served else [])
    if not served:
        assert await driver.record(execution_id) == before
        await driver.engine.lanes.configure("default", "default", state="active")
        assert await driver.record(execution_id) == before
        assert ids(await driver.claim_all(n=9)) == [execution_id]
    assert ids(await driver.claim_all(n=9, namespace="other")) == [elsewhere]


async def test_a_paused_lane_does_not_hold_up_the_others(driver: Driver) -> None:
    await driver.submit(lane="a")
    b = await driver.submit(lane="b")
    await driver.engine.lanes.configure("default", "a", state="paused")
    assert ids(await driver.claim_all(n=9, lanes=("a", "b"))) == [b]


async def test_work_with_limits_nobody_defined_is_leased(driver: Driver) -> None:
    take_for_known(driver.engine, "550e8400-e29b-41d4-a716-446655440000")
    policy = {"budget_ids": ["550e8400-e29b-41d4-a716-446655440000"]}
    execution_id = await driver.submit(policy=policy, input=b"x")
    claimed = await driver.claim()
    assert (claimed.execution_id, claimed.input) == (execution_id, b"x")
    assert claimed.record.grant_id == ""
    assert claimed.record.attempt_count == 1


# ---- fairness


async def test_a_flood_of_one_key_lets_others_between(driver: Driver) -> None:
    flood = [await driver.submit(policy={"fairness_key": "loud"}) for _ in range(60)]
    driver.clock.advance(1)
    single = await driver.submit(policy={"fairness_key": "quiet"})
    urgent = await driver.submit(policy={"fairness_key": "loud"}, priority=1)
    claimed = ids(await driver.claim_all(n=100))
    assert claimed[:3] == [urgent, flood[0], single]
    assert claimed[3:] == flood[1:]


async def test_each_of_a_key_stands_a_second_behind_the_one_before(driver: Driver) -> None:
    policy = {"fairness_key": "k"}
    shifts = []
    for pause in (0, 0, 300, 10_000):
        driver.clock.advance(pause)
        record = await driver.record(await driver.submit(policy=policy))
        shifts.append(record.rank_shift)
        assert record.rank == record.created_at + record.rank_shift
    assert shifts == [0, 1_000, 1_700, 0]


async def test_fairness_is_told_apart_by_lane_and_namespace(driver: Driver) -> None:
    policy = {"fairness_key": "k"}
    places = [{}, {"lane": "b"}, {"namespace": "other"}]
    sent = [await driver.submit(policy=policy, **place) for place in places]
    assert [(await driver.record(each)).rank_shift for each in sent] == [0, 0, 0]


# ---- work that is ended instead of run


async def test_lost_work_at_its_cap_fails_and_the_claim_goes_on(driver: Driver) -> None:
    lost = await driver.reach("lease_expired", policy={"max_reclaim_count": 0})
    other = await driver.submit()
    assert ids(await driver.claim_all()) == [other]
    record = await driver.record(lost.execution_id)
    assert (record.state, record.failure_reason) == ("failed", "max_reclaims_exceeded")
    assert record.reclaim_count == 0
    (attempt,) = await driver.attempts(lost.execution_id)
    assert (attempt.state, attempt.closed_reason) == ("interrupted_reclaimed", "reclaimed")
    assert await driver.completions() == [(lost.execution_id, "failed")]


async def test_reclaims_stop_exactly_at_the_cap(driver: Driver) -> None:
    execution_id = await driver.submit(policy={"max_reclaim_count": 2})
    kinds = []
    while claimed := await driver.claim_all(lease_ms=1_000):
        kinds.append(claimed[0].record.attempt_type)
        await driver.pass_time(1_000)
    assert kinds == ["initial", "reclaim", "reclaim"]
    assert (await driver.record(execution_id)).state == "failed"


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [("cancel_all", "cancelled"), ("cancel_pending", "cancelled"), ("flow_only", "active")],
)
async def test_a_claim_cancels_members_their_flow_s_cancel_covers(
    driver: Driver, policy: str, outcome: str
) -> None:
    cancelled = {"cancelled_at": 1, "cancel_policy": policy, "cancel_reason": "no more"}
    flow = await driver.graph(Graph(members={"a": Member(priority=5)}, flow=cancelled))
    other = await driver.submit()
    claimed = ids(await driver.claim_all(n=2))
    record = await flow.record("a")
    assert record.state == outcome
    assert claimed == ([flow.ids["a"], other] if outcome == "active" else [other])
    if outcome == "cancelled":
        assert (record.cancelled_by, record.cancellation_reason) == ("flow_cascade", "no more")
        assert await driver.completions() == [(flow.ids["a"], "cancelled")]
