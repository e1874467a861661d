"""Submitting an execution: what is stored, where, and what is a duplicate."""

from typing import Any
from uuid import uuid4

import pytest

from flowfabric.core.ids import compose, partition_of
from flowfabric.core.queues import queue_of
from flowfabric.errors import (
    InvalidPolicyJson,
    LaneNotAccepting,
)
from flowfabric.operations.executions import (
    ExecutionCreated,
    ExecutionDuplicate,
    Executions,
    Submission,
    Submitted,
)
from tests.conformance.driver import Driver, refused
from tests.conformance.graphs import Graph, Member
from tests.conformance.limiting import new_budget, new_quota
from tests.proofs import proves

DAY_MS = 86_400_000


async def create(driver: Driver, **fields: Any) -> Submitted:
    return await driver.engine.executions.create(Submission(**({"kind": "work"} | fields)))


@proves(Executions.submit)
async def test_a_new_execution_waits_for_its_first_claim(driver: Driver) -> None:
    answer = await create(driver, kind="send", creator="ada", tags={"team": "blue", "size": 3})
    record = await driver.record(answer.execution_id)
    now = driver.clock()
    assert answer == ExecutionCreated(record.execution_id, "waiting")
    assert (record.state, record.reason, record.next) == ("waiting", "", "first")
    assert (record.created_at, record.moved_at, record.changed_at) == (now, now, now)
    assert (record.namespace, record.lane, record.kind) == ("default", "default", "send")
    assert (record.creator, record.tags) == ("ada", {"team": "blue", "size": "3"})
    assert (record.attempt_count, record.lease_epoch, record.started_at) == (0, 0, 0)
    assert record.due_at == 0
    assert record.version == 1


async def test_creating_is_no_event(driver: Driver) -> None:
    await create(driver)
    assert await driver.events() == []


@pytest.mark.parametrize(
    "payload",
    [b"", b"\0", bytes(range(256)) * 64, bytes(1024 * 1024)],
    ids=["empty", "nul", "all_bytes", "largest"],
)
async def test_input_comes_back_byte_for_byte(driver: Driver, payload: bytes) -> None:
    await create(driver, input=payload, payload_encoding="raw")
    claimed = await driver.claim()
    assert (claimed.input or b"") == payload
    assert claimed.record.payload_encoding == "raw"


@pytest.mark.parametrize(
    ("given", "stored"),
    [(0, 0), (9_000, 9_000), (12_000, 9_000), (-5, 0), (10**30, 9_000), (-(10**30), 0)],
)
async def test_priority_is_clamped_without_an_error(
    driver: Driver, given: int, stored: int
) -> None:
    execution_id = await driver.submit(priority=given)
    record = await driver.record(execution_id)
    assert record.priority == stored
    assert record.rank == driver.clock() - stored * 10**12


async def test_the_policy_s_priority_counts_only_without_one_of_the_request(
    driver: Driver,
) -> None:
    by_policy = await driver.submit(policy={"priority": 7})
    by_request = await driver.submit(policy={"priority": 7}, priority=0)
    assert (await driver.record(by_policy)).priority == 7
    assert (await driver.record(by_request)).priority == 0


async def test_a_delay_ahead_delays_and_a_past_one_means_now(driver: Driver) -> None:
    now = driver.clock()
    later = await create(driver, delay_until=now + 1)
    at_once = await create(driver, delay_until=now)
    long_ago = await create(driver, delay_until=0)
    record = await driver.record(later.execution_id)
    assert later.public_state == "delayed"
    assert (record.state, record.reason, record.next) == ("delayed", "delay", "first")
    assert (record.wake_at, record.due_at) == (now + 1, now + 1)
    assert (at_once.public_state, long_ago.public_state) == ("waiting", "waiting")
    assert (await driver.record(at_once.execution_id)).wake_at == 0


async def test_the_policy_s_delay_counts_only_without_one_of_the_request(driver: Driver) -> None:
    now = driver.clock()
    by_policy = await driver.submit(policy={"delay_until": now + 500})
    by_request = await driver.submit(policy={"delay_until": now + 500}, delay_until=now + 900)
    assert (await driver.record(by_policy)).wake_at == now + 500
    assert (await driver.record(by_request)).wake_at == now + 900


@pytest.mark.parametrize(
    ("instant", "duration", "deadline"),
    [
        (None, None, 0),
        (5_000, None, 5_000),
        (None, 4_000, 4_000),
        (5_000, 4_000, 4_000),
        (3_000, 4_000, 3_000),
        (-1_000, None, -1_000),
    ],
)
async def test_the_earlier_deadline_counts(
    driver: Driver, instant: int | None, duration: int | None, deadline: int
) -> None:
    now = driver.clock()
    policy = {"timeout_policy": {"execution_deadline_ms": duration}}
    execution_id = await driver.submit(
        policy=policy, deadline_at=None if instant is None else now + instant
    )
    record = await driver.record(execution_id)
    assert record.deadline_at == (now + deadline if deadline else 0)
    assert record.due_at == record.deadline_at


async def test_a_deadline_already_past_is_accepted_and_expires_at_the_next_sweep(
    driver: Driver,
) -> None:
    answer = await create(driver, deadline_at=driver.clock() - 1)
    assert answer.public_state == "waiting"
    await driver.sweep()
    assert (await driver.record(answer.execution_id)).state == "expired"


async def test_limits_of_the_policy_are_copied_to_the_record(driver: Driver) -> None:
    budget, quota = await new_budget(driver.engine), await new_quota(driver.engine)
    execution_id = await driver.submit(
        policy={
            "budget_ids": [budget, budget],
            "quota_ids": [quota],
            "fairness_key": "tenant",
            "timeout_policy": {"attempt_timeout_ms": 1_234},
            "max_reclaim_count": 5,
            "retention_ms": 99,
            "routing_requirements": {"required_capabilities": ["gpu", "cuda", "gpu"]},
        }
    )
    record = await driver.record(execution_id)
    assert (record.budget_ids, record.quota_ids) == ((budget,), (quota,))
    assert record.gated
    assert (record.fairness_key, record.rank_shift) == ("tenant", 0)
    assert (record.attempt_timeout_ms, record.max_reclaim_count) == (1_234, 5)
    assert record.retention_ms == 99
    assert record.required_capabilities == ("cuda", "gpu")


@pytest.mark.parametrize(
    ("policy", "cap"),
    [
        ({}, 100),
        ({"timeout_policy": {"max_reclaim_count": 7}}, 7),
        ({"timeout_policy": {"max_reclaim_count": 7}, "max_reclaim_count": 0}, 0),
    ],
)
async def test_the_top_level_reclaim_cap_wins(
    driver: Driver, policy: dict[str, object], cap: int
) -> None:
    execution_id = await driver.submit(policy=policy)
    assert (await driver.record(execution_id)).max_reclaim_count == cap


@pytest.mark.parametrize("policy", [None, "", b"", "{}", b"{}", {}, "null"])
async def test_an_empty_policy_has_no_requirements(driver: Driver, policy: object) -> None:
    execution_id = await driver.submit(policy=policy)
    record = await driver.record(execution_id)
    assert (record.required_capabilities, record.policy) == ((), "")
    assert record.req_set == queue_of("-", record.kind)


async def test_null_members_count_as_absent(driver: Driver) -> None:
    execution_id = await driver.submit(policy={"retry_policy": None, "priority": None})
    assert (await driver.record(execution_id)).policy == ""


# ---- duplicates


async def test_the_same_id_is_a_duplicate_and_changes_nothing(driver: Driver) -> None:
    first = await create(driver, input=b"one")
    before = await driver.snapshot()
    again = await create(driver, execution_id=first.execution_id, input=b"two")
    assert again == ExecutionDuplicate(first.execution_id)
    assert await driver.snapshot() == before
    assert (await driver.claim()).input == b"one"


async def test_a_known_key_answers_the_stored_id(driver: Driver) -> None:
    first = await create(driver, idempotency_key="order-1", input=b"one")
    again = await create(driver, idempotency_key="order-1", input=b"one", priority=3)
    assert first.is_new
    assert again == ExecutionDuplicate(first.execution_id)
    assert len(await driver.claim_all(n=10)) == 1


async def test_a_known_key_comes_before_the_id(driver: Driver) -> None:
    first = await driver.submit(idempotency_key="order-1")
    other = compose(partition_of(first), str(uuid4()))
    answer = await create(driver, idempotency_key="order-1", execution_id=other)
    assert answer == ExecutionDuplicate(first)


async def test_a_key_outlives_the_execution_and_ends_with_its_window(driver: Driver) -> None:
    first = await driver.submit(idempotency_key="k", policy={"dedup_window_ms": 1_000})
    await driver.engine.outcomes.complete((await driver.claim()).proof)
    driver.clock.advance(999)
    assert not (await create(driver, idempotency_key="k")).is_new
    driver.clock.advance(1)
    second = await create(driver, idempotency_key="k")
    assert second.is_new
    assert second.execution_id != first


async def test_a_key_lives_for_a_day_by_default(driver: Driver) -> None:
    await driver.submit(idempotency_key="k")
    driver.clock.advance(DAY_MS - 1)
    assert not (await create(driver, idempotency_key="k")).is_new
    driver.clock.advance(1)
    assert (await create(driver, idempotency_key="k")).is_new


async def test_a_window_of_nothing_writes_no_key(driver: Driver) -> None:
    first = await create(driver, idempotency_key="k", policy={"dedup_window_ms": 0})
    second = await create(driver, idempotency_key="k", policy={"dedup_window_ms": 0})
    assert first.is_new
    assert second.is_new


async def test_keys_are_scoped_to_the_namespace(driver: Driver) -> None:
    here = await create(driver, idempotency_key="k")
    there = await create(driver, idempotency_key="k", namespace="other")
    assert here.is_new
    assert there.is_new


async def test_in_a_flow_keys_are_scoped_to_the_flow(driver: Driver) -> None:
    first = await driver.graph(Graph(members={"a": Member()}))
    second = await driver.graph(Graph(members={"a": Member()}))
    answers = [
        await create(driver, idempotency_key="k", **flow)
        for flow in ({}, {"flow_id": first.flow_id}, {"flow_id": second.flow_id})
    ]
    again = await create(driver, idempotency_key="k", flow_id=first.flow_id)
    assert [answer.is_new for answer in answers] == [True, True, True]
    assert again == ExecutionDuplicate(answers[1].execution_id)


# ---- placement


async def test_ids_are_placed_by_lane_key_or_flow(driver: Driver) -> None:
    flow = await driver.graph(Graph(members={"a": Member()}))
    counts = driver.engine.deps.counts
    alone = await driver.submit(lane="gpu")
    keyed = await driver.submit(lane="gpu", idempotency_key="k")
    member = await driver.submit(lane="gpu", flow_id=flow.flow_id)
    assert partition_of(alone) == 144
    assert partition_of(keyed) == counts.of_key("default", "k")
    assert partition_of(member) == counts.of_flow(flow.flow_id)


async def test_lane_shards_spread_new_work_and_lose_none_of_it(driver: Driver) -> None:
    old = await driver.submit()
    await driver.engine.lanes.configure("default", "default", shards=16)
    ids = {await driver.submit() for _ in range(60)}
    assert len({partition_of(execution_id) for execution_id in ids}) > 4
    claimed = await driver.claim_all(n=100)
    assert {each.execution_id for each in claimed} == ids | {old}


async def test_a_member_joins_the_counts_of_its_flow(driver: Driver) -> None:
    flow = await driver.graph(Graph(members={"a": Member()}))
    execution_id = await driver.submit(flow_id=flow.flow_id)
    stored = await flow.flow()
    assert (await driver.record(execution_id)).flow_id == flow.flow_id
    assert (stored.node_count, stored.counts) == (2, {"waiting": 2})


async def test_a_flow_that_was_finished_is_open_again_with_a_new_member(driver: Driver) -> None:
    flow = await driver.graph(Graph(members={"a": Member()}))
    await flow.complete("a")
    assert (await flow.flow()).finished_at == driver.clock()
    await driver.submit(flow_id=flow.flow_id)
    assert (await flow.flow()).finished_at == 0


# ---- lanes


@pytest.mark.parametrize(
    ("state", "accepts"),
    [("active", True), ("paused", True), ("draining", False), ("disabled", False)],
)
async def test_a_lane_accepts_work_by_its_state(driver: Driver, state: str, accepts: bool) -> None:
    await driver.engine.lanes.configure("default", "default", state=state)
    if accepts:
        assert (await create(driver)).is_new
    else:
        with refused(LaneNotAccepting, f"lane default is {state}"):
            await create(driver)
    assert (await create(driver, namespace="other")).is_new


async def test_members_need_an_open_lane_too(driver: Driver) -> None:
    flow = await driver.graph(Graph(members={"a": Member()}))
    await driver.engine.lanes.configure("default", "default", state="draining")
    with refused(LaneNotAccepting):
        await create(driver, flow_id=flow.flow_id)


async def lanes_of(driver: Driver, namespace: str) -> list[str]:
    page = await driver.engine.lanes.list_lanes(namespace, "", 10)
    assert page.next_cursor == ""
    return [one.lane_id for one in page.items]


async def test_a_lane_is_known_after_its_first_execution(driver: Driver) -> None:
    await driver.submit(lane="fresh")
    await driver.submit(lane="fresh")
    await driver.submit(lane="also")
    await driver.engine.lanes.drain()
    assert await lanes_of(driver, "default") == ["also", "fresh"]
    assert await lanes_of(driver, "other") == []


async def test_a_refused_submission_makes_no_lane_known(driver: Driver) -> None:
    with refused(InvalidPolicyJson):
        await create(driver, lane="fresh", policy={"retries": 3})
    await driver.engine.lanes.drain()
    assert await lanes_of(driver, "default") == []
    await create(driver, lane="fresh")
    await driver.engine.lanes.drain()
    assert await lanes_of(driver, "default") == ["fresh"]
