"""Explain: every reason why an execution is not running, in one answer."""

import pytest

from flowfabric.core.conditions import signal_set
from flowfabric.engine import engine_on
from flowfabric.errors import Corruption, ExecutionNotFound, InvalidInput
from flowfabric.operations.attempts import SuspendOrder
from flowfabric.operations.execution_queries import Blocker, ExecutionQueries, Explanation
from flowfabric.operations.executions import GrantOrder
from flowfabric.operations.workers import ClaimOrder, Registration
from tests.conformance.driver import (
    LEASE_MS,
    NOWHERE,
    PERMANENT,
    RETRIES,
    TRANSIENT,
    Driver,
    refused,
    unfenced,
)
from tests.conformance.graphs import chain
from tests.conformance.limiting import (
    SOME_BUDGET,
    Watched,
    new_budget,
    new_quota,
    report,
    take_for_known,
)
from tests.proofs import proves

GPU = {"routing_requirements": {"required_capabilities": ["cuda", "gpu"]}}


async def worker(
    driver: Driver, name: str = "w-1", *capabilities: str, lane: str = "default"
) -> None:
    await driver.engine.workers.register_worker(
        Registration(
            worker_id="w",
            worker_instance_id=name,
            lanes=frozenset({lane}),
            capabilities=frozenset(capabilities),
            ttl_ms=600_000,
        )
    )


async def explain(driver: Driver, execution_id: str) -> Explanation:
    return await driver.engine.explanations.explain(execution_id)


async def only(driver: Driver, execution_id: str) -> Blocker:
    (blocker,) = (await explain(driver, execution_id)).blockers
    return blocker


def codes(told: Explanation) -> list[str]:
    return [blocker.code for blocker in told.blockers]


async def test_work_that_waits_its_turn_has_no_blockers(driver: Driver) -> None:
    await worker(driver)
    for _ in range(2):
        await driver.submit(priority=9)
    await driver.submit(priority=9, policy=GPU)
    driver.clock.advance(700)
    own = await driver.submit()
    told = await explain(driver, own)
    assert (told.running, told.blockers, told.public_state) == (False, (), "waiting")
    assert told.queue is not None
    assert (told.queue.lane_id, told.queue.ahead) == ("default", 2)
    assert told.queue.oldest_waiting_ms == 700
    assert (told.queue.live_workers, told.queue.capable_workers) == (1, 1)
    assert told.lines() == [
        f"{own} is waiting: waiting its turn",
        "- lane default: 2 ahead, 1 of 1 live workers could run it",
    ]


async def test_running_work_is_running(driver: Driver) -> None:
    one = await driver.started()
    told = await explain(driver, one.execution_id)
    assert (told.running, told.blockers, told.attempts) == (True, (), 1)
    assert told.next_timer is not None
    assert (told.next_timer.what, told.next_timer.at) == (
        "lease_expiry",
        driver.clock() + LEASE_MS,
    )
    assert told.lines()[0] == f"{one.execution_id} is active: running"


async def test_no_worker_of_the_lane(driver: Driver) -> None:
    await worker(driver, lane="elsewhere")
    own = await driver.submit()
    blocker = await only(driver, own)
    assert blocker == Blocker("no_worker", "no live worker of lane default")
    told = await explain(driver, own)
    assert told.hints == ("start a worker of namespace default on lane default",)
    assert told.state_vector.blocking_reason == "waiting_for_worker"


async def test_missing_capabilities_name_the_nearest_worker(driver: Driver) -> None:
    await worker(driver, "far")
    await worker(driver, "near", "gpu", "red")
    blocker = await only(driver, await driver.submit(policy=GPU))
    assert blocker.code == "missing_capabilities"
    assert blocker.detail == "needs cuda, gpu; the nearest worker near lacks cuda"


async def test_a_paused_lane(driver: Driver) -> None:
    await worker(driver)
    own = await driver.submit()
    await driver.engine.lanes.configure("default", "default", state="paused")
    assert await only(driver, own) == Blocker("lane_state", "lane default is paused")


@proves(ExecutionQueries.explain)
async def test_all_reasons_come_together(driver: Driver) -> None:
    engine = driver.engine
    budget_id = await new_budget(engine, {"t": 1})
    await report(engine, budget_id, t=1)
    quota = await new_quota(engine, rate=1, window=10, cap=5)
    policy = {"quota_ids": [quota], "concurrency_key": "k"}
    await driver.submit(policy=policy)
    await driver.claim()
    own = await driver.submit(policy=policy | {"budget_ids": [budget_id]} | GPU)
    await driver.engine.lanes.configure("default", "default", state="disabled")
    await worker(driver)
    told = await explain(driver, own)
    assert codes(told) == [
        "lane_state",
        "missing_capabilities",
        "budget",
        "quota",
        "concurrency_key",
    ]
    details = [blocker.detail for blocker in told.blockers]
    assert details[2:] == [
        f"budget {budget_id}: t 1/1",
        f"quota {quota}: rate limit 1/1 per 10s window, retry after 10000 ms",
        "concurrency key k: limit 1",
    ]
    assert told.blockers[3].until == driver.clock() + 10_000
    assert len(told.lines()) > len(told.blockers)


async def test_a_block_shows_what_stopped_it_and_when_it_is_looked_at_again(
    driver: Driver,
) -> None:
    engine = driver.engine
    await worker(driver)
    budget_id = await new_budget(engine, {"t": 1})
    await report(engine, budget_id, t=1)
    own = await driver.submit(policy={"budget_ids": [budget_id]})
    await driver.claim_all()
    blocked_at = driver.clock()
    driver.clock.advance(1_000)
    told = await explain(driver, own)
    assert told.blockers == (
        Blocker("budget", f"budget {budget_id}: t 1/1", blocked_at, blocked_at + 5_000),
    )
    assert told.public_state == "rate_limited"
    assert told.next_timer is not None
    assert (told.next_timer.what, told.next_timer.at) == ("unblock", blocked_at + 5_000)
    assert "raise its limit" in told.hints[0]


async def test_a_full_quota_and_a_full_key_show_their_numbers(driver: Driver) -> None:
    engine = driver.engine
    await worker(driver)
    quota = await new_quota(engine, cap=1)
    await driver.submit(policy={"quota_ids": [quota]})
    await driver.claim()
    own = await driver.submit(policy={"quota_ids": [quota]})
    assert (await only(driver, own)).detail == f"quota {quota}: concurrency cap 1"
    await driver.claim_all()
    blocker = await only(driver, own)
    assert (blocker.code, blocker.since) == ("quota", driver.clock())


@pytest.mark.parametrize("is_resumed", [False, True])
async def test_a_resumed_execution_is_not_kept_back_by_a_full_window(
    driver: Driver, is_resumed: bool
) -> None:
    engine = driver.engine
    await worker(driver)
    quota = await new_quota(engine, rate=1, window=10)
    own = await driver.submit(policy={"quota_ids": [quota]})
    if is_resumed:
        await engine.outcomes.delay((await driver.claim()).proof, for_ms=0)
    else:
        await driver.submit(policy={"quota_ids": [quota]}, priority=9)
        await driver.claim()
    assert bool((await explain(driver, own)).blockers) is not is_resumed


async def test_limits_that_cannot_be_read_are_a_reason_too(driver: Driver) -> None:
    take_for_known(driver.engine, SOME_BUDGET)
    await worker(driver)
    policy = {"budget_ids": [SOME_BUDGET], "quota_ids": [SOME_BUDGET]}
    own = await driver.submit(policy=policy)
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    for name in ("budgets", "gates"):
        watched.fail(name, Corruption("stored Budget: unreadable"))
    told = await engine.explanations.explain(own)
    assert codes(told) == ["budget", "quota"]
    assert "cannot be read" in told.blockers[0].detail
    await engine.close()


async def test_delays_of_every_kind(driver: Driver) -> None:
    until = driver.clock() + 60_000
    own = await driver.submit(delay_until=until)
    blocker = await only(driver, own)
    assert (blocker.code, blocker.until) == ("delay", until)
    assert blocker.detail == f"delayed until {until}"
    held = (await driver.started(policy=RETRIES)).proof
    await driver.engine.outcomes.fail(held, TRANSIENT)
    told = await explain(driver, held.execution_id)
    assert codes(told) == ["retry_backoff"]
    assert told.last_failure is not None
    assert (told.last_failure.reason, told.last_failure.category) == ("flaky", "transient")
    assert told.next_timer is not None
    assert told.next_timer.what == "delayed_promoter"


async def test_unmet_dependencies_name_what_is_waited_for(driver: Driver) -> None:
    flow = await driver.graph(chain("first", "second"))
    blocker = await only(driver, flow.ids["second"])
    assert blocker.code == "dependencies"
    assert blocker.detail == f"1 unmet: {flow.ids['first']}"


async def test_an_operators_hold(driver: Driver) -> None:
    own = await driver.submit()
    await driver.engine.scheduling.block(own, "paused_by_operator", "audit")
    assert await only(driver, own) == Blocker("operator_hold", "audit", driver.clock())
    await driver.engine.scheduling.unblock(own)
    await driver.engine.scheduling.block(own, "paused_by_policy")
    assert (await only(driver, own)).code == "lane_state"


async def test_a_route_hold_says_who_is_missing(driver: Driver) -> None:
    own = await driver.submit(policy=GPU)
    await driver.engine.scheduling.block(own, "waiting_for_capable_worker", "no gpu here")
    assert codes(await explain(driver, own)) == ["no_worker", "missing_capabilities"]


async def test_a_suspension_names_the_missing_signals_and_no_token(driver: Driver) -> None:
    one = await driver.started()
    order = SuspendOrder(
        resume_condition=signal_set("yes", "also"),
        reason_code="waiting_for_approval",
        timeout_ms=60_000,
    )
    await driver.engine.suspensions.suspend(one.proof, order)
    blocker = await only(driver, one.execution_id)
    assert blocker.code == "suspended"
    assert blocker.detail.startswith("waiting_for_approval: yes, also at waitpoint ")
    assert blocker.until == driver.clock() + 60_000
    record = await driver.record(one.execution_id)
    assert blocker.detail.endswith(record.waitpoint_id)


async def test_a_reservation_and_its_holder(driver: Driver) -> None:
    await worker(driver)
    own = await driver.submit()
    await driver.engine.grants.issue(own, GrantOrder(worker_id="w", worker_instance_id="w-9"))
    blocker = await only(driver, own)
    assert (blocker.code, blocker.detail) == ("reserved", "reserved for w/w-9")
    assert blocker.until == driver.clock() + 5_000


async def test_a_lost_lease_and_what_keeps_it_from_being_taken_over(driver: Driver) -> None:
    await worker(driver)
    one = await driver.started(policy={"concurrency_key": "k"})
    await driver.pass_time(LEASE_MS)
    told = await explain(driver, one.execution_id)
    assert codes(told)[0] == "lease_lost"
    assert told.public_state == "active"
    driver.clock.advance(5_000)
    await driver.submit(policy={"concurrency_key": "k"}, priority=9)
    await driver.claim()
    assert await driver.claim_all() == []
    told = await explain(driver, one.execution_id)
    assert codes(told) == ["lease_lost", "reserved", "concurrency_key"]
    assert "concurrency key k: limit 1" in told.blockers[1].detail


@pytest.mark.parametrize("end", ["complete", "fail", "cancel"])
async def test_finished_work_is_finished(driver: Driver, end: str) -> None:
    one = await driver.started()
    outcomes = driver.engine.outcomes
    if end == "complete":
        await outcomes.complete(one.proof)
    elif end == "fail":
        await outcomes.fail(one.proof, PERMANENT)
    else:
        await outcomes.cancel(unfenced(one.execution_id), "enough")
    told = await explain(driver, one.execution_id)
    (blocker,) = told.blockers
    assert blocker.code == "terminal"
    expected = {"complete": "completed", "fail": "failed: broken", "cancel": "cancelled: enough"}
    assert blocker.detail == expected[end]
    assert told.hints == (() if end == "complete" else ("replay it",))
    assert (told.queue, told.next_timer) == (None, None)


async def test_nothing_is_said_about_nothing(driver: Driver) -> None:
    with refused(ExecutionNotFound):
        await explain(driver, NOWHERE)
    with refused(InvalidInput):
        await explain(driver, "x")


async def test_it_takes_one_look_at_the_execution(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    engine = engine_on(watched)
    policy = {
        "budget_ids": [await new_budget(engine, {"t": 1}) for _ in range(2)],
        "quota_ids": [await new_quota(engine, cap=1) for _ in range(2)],
        "concurrency_key": "k",
    }
    own = await driver.submit(policy=policy)
    watched.calls.clear()
    await engine.explanations.explain(own)
    assert sorted(watched.calls) == [
        "budgets",
        "config_get",
        "gates",
        "read",
        "search",
        "workers",
    ]
    (claimed,) = await engine.claims.claim(
        ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",))
    )
    watched.calls.clear()
    await engine.explanations.explain(claimed.execution_id)
    assert watched.calls == ["read"]
    await engine.close()
