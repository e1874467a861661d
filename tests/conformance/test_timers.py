"""The timer sweep: each cause fires once, however many look, and never too early."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from flowfabric.backend.base import Backend
from flowfabric.config import DutyFilter
from flowfabric.core.due import DueContext, on_due
from flowfabric.core.plan import Plan, Refused
from flowfabric.duties import sweep as sweep_module
from flowfabric.duties.result import DutyResult
from flowfabric.duties.sweep import MOST_PAGES, PAGE, TimerSweep
from flowfabric.engine import Engine, engine_on
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import Bug
from flowfabric.operations.executions import GrantOrder, Submission
from flowfabric.operations.workers import Registration
from tests.conformance.driver import LIVE, RETRIES, Driver
from tests.conformance.graphs import Graph, Member

SOON_MS = 1_000
ORDER = GrantOrder(worker_id="pool", worker_instance_id="pool-1", grant_ttl_ms=SOON_MS)
TIMED = {"timeout_policy": {"attempt_timeout_ms": SOON_MS}}
RETRIED = TIMED | {"retry_policy": {"retryable_categories": ["timeout"]}}
GPU = {"routing_requirements": {"required_capabilities": ["gpu"]}}

Setup = Callable[[Driver], Awaitable[str]]


async def sweep_twice(engine: Engine) -> DutyResult:
    """Two sweeps at the same time, as two servers would; what they did together."""
    total = DutyResult()
    for result in await asyncio.gather(TimerSweep(engine).visit(), TimerSweep(engine).visit()):
        total.counts.update(result.counts)
    return total


# ---- every row of the table


async def _leased(driver: Driver) -> str:
    return (await driver.take(await driver.submit(), SOON_MS)).execution_id


async def _timed(driver: Driver) -> str:
    return (await driver.take(await driver.submit(policy=TIMED))).execution_id


async def _retried(driver: Driver) -> str:
    return (await driver.take(await driver.submit(policy=RETRIED))).execution_id


async def _delayed(driver: Driver) -> str:
    return await driver.submit(delay_until=driver.clock() + SOON_MS)


async def _paused(driver: Driver) -> str:
    held = (await driver.take(await driver.submit())).proof
    await driver.engine.outcomes.delay(held, for_ms=SOON_MS)
    return held.execution_id


async def _backing_off(driver: Driver) -> str:
    return (await driver.reach("backoff")).execution_id


async def _remembered(driver: Driver) -> str:
    ahead = Member(delay_until=driver.clock() + SOON_MS)
    flow = await driver.graph(Graph(arrows=[("a", "b")], members={"b": ahead}))
    return flow.ids["b"]


async def _limited(driver: Driver) -> str:
    execution_id = await driver.submit()
    await driver.engine.scheduling.block(
        execution_id, "waiting_for_budget", "budget", look_in_ms=SOON_MS
    )
    return execution_id


async def _unserved(driver: Driver) -> str:
    execution_id = await driver.submit(policy=GPU)
    await driver.engine.scheduling.block(
        execution_id, "waiting_for_capable_worker", look_in_ms=SOON_MS
    )
    return execution_id


async def _granted(driver: Driver) -> str:
    execution_id = await driver.submit()
    await driver.engine.grants.issue(execution_id, ORDER)
    return execution_id


async def _granted_lost(driver: Driver) -> str:
    held = await driver.reach("lease_revoked")
    await driver.engine.grants.issue_reclaim(held.execution_id, ORDER)
    return held.execution_id


async def _doomed(driver: Driver) -> str:
    return await driver.submit(deadline_at=driver.clock() + SOON_MS)


# (how it comes about, duty, state and reason afterwards, next, when it is due again)
ROWS: list[tuple[Setup, str, str, str, int]] = [
    (_leased, "lease_expiry", "lost/lease_expired", "reclaim", 0),
    (_timed, "attempt_timeout", "expired/", "", 0),
    (_retried, "attempt_timeout", "delayed/retry_backoff", "retry", 1_000),
    (_delayed, "delayed_promoter", "waiting/", "first", 0),
    (_paused, "delayed_promoter", "waiting/", "resume", 0),
    (_backing_off, "delayed_promoter", "waiting/", "retry", 0),
    (_remembered, "delayed_promoter", "blocked/dependencies", "first", 0),
    (_limited, "unblock", "waiting/", "first", 0),
    (_unserved, "unblock", "blocked/route", "first", 5_000),
    (_granted, "grant_expiry", "waiting/", "first", 0),
    (_granted_lost, "grant_expiry", "lost/lease_revoked", "reclaim", 0),
    (_doomed, "execution_deadline", "expired/", "first", 0),
]


@pytest.mark.parametrize(
    ("setup", "duty", "after", "following", "again"),
    ROWS,
    ids=[row[0].__name__.strip("_") for row in ROWS],
)
async def test_each_instant_fires_once_with_two_sweeps_running(
    driver: Driver, setup: Setup, duty: str, after: str, following: str, again: int
) -> None:
    execution_id = await setup(driver)
    before = await driver.record(execution_id)
    early = min(before.due_at - 1, driver.clock() + SOON_MS)
    driver.clock.advance(early - driver.clock())
    assert (await sweep_twice(driver.engine)).counts == {}
    assert await driver.record(execution_id) == before
    driver.clock.advance(1)
    result = await sweep_twice(driver.engine)
    assert (result.of(duty), result.total("error")) == (1, 0)
    record = await driver.record(execution_id)
    assert f"{record.state}/{record.reason}" == after
    assert record.next == following
    assert record.due_at == (driver.clock() + again if again else 0)
    assert record.version == before.version + 1
    assert (await sweep_twice(driver.engine)).counts == {}
    assert await driver.record(execution_id) == record


@pytest.mark.parametrize("situation", LIVE)
async def test_a_deadline_fires_in_every_live_state(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation, deadline_at=driver.clock() + 2_000)
    driver.clock.advance(2_000)
    result = await sweep_twice(driver.engine)
    assert (result.of("execution_deadline"), result.total("error")) == (1, 0)
    assert (await driver.record(held.execution_id)).state == "expired"
    assert await driver.completions() == [(held.execution_id, "expired")]


# ---- what comes first


async def test_a_deadline_beats_everything_else_that_is_due(driver: Driver) -> None:
    late = driver.clock() + 50_000
    held = (await driver.started(policy=TIMED, deadline_at=late)).proof
    driver.clock.advance(100_000)
    result = await driver.sweep()
    assert result.of("execution_deadline") == 1
    record = await driver.record(held.execution_id)
    assert (record.state, record.failure_reason) == ("expired", "execution_deadline")


async def test_after_an_outage_a_dead_worker_s_attempt_is_lost_not_timed_out(
    driver: Driver,
) -> None:
    await driver.submit(policy={"timeout_policy": {"attempt_timeout_ms": 60_000}})
    held = (await driver.claim(lease_ms=30_000)).proof
    driver.clock.advance(600_000)
    assert (await driver.sweep()).of("lease_expiry") == 1
    record = await driver.record(held.execution_id)
    assert (record.state, record.attempt_until) == ("lost", 0)
    assert (await driver.sweep()).counts == {}
    assert (await driver.claim()).record.attempt_type == "reclaim"


async def test_an_attempt_out_of_time_before_its_lease_is_timed_out(driver: Driver) -> None:
    await driver.submit(policy=TIMED)
    held = (await driver.claim(lease_ms=30_000)).proof
    driver.clock.advance(600_000)
    assert (await driver.sweep()).of("attempt_timeout") == 1
    assert (await driver.record(held.execution_id)).state == "expired"


async def test_of_equal_instants_the_lease_comes_first(driver: Driver) -> None:
    await driver.submit(policy=TIMED)
    held = (await driver.claim(lease_ms=SOON_MS)).proof
    assert (await driver.pass_time(SOON_MS)).of("lease_expiry") == 1
    assert (await driver.record(held.execution_id)).state == "lost"


# ---- what is left alone


async def test_a_renewed_lease_is_never_marked(driver: Driver) -> None:
    held = await driver.reach("active")
    for _ in range(20):
        driver.clock.advance(20_000)
        await driver.engine.leases.renew(held, 30_000)
        assert (await sweep_twice(driver.engine)).counts == {}
    assert (await driver.record(held.execution_id)).state == "active"


async def _renew(driver: Driver, held: LeaseProof) -> None:
    await driver.engine.leases.renew(held, 99_000)


async def _take_over(driver: Driver, held: LeaseProof) -> None:
    await driver.engine.leases.revoke_lease(held.execution_id)
    await driver.claim()


async def _hand_on(driver: Driver, held: LeaseProof) -> None:
    await driver.engine.outcomes.delay(held, for_ms=0)
    await driver.claim()


async def _finish(driver: Driver, held: LeaseProof) -> None:
    await driver.engine.outcomes.complete(held)


@pytest.mark.parametrize("change", [_renew, _take_over, _hand_on, _finish])
async def test_what_changed_between_reading_and_applying_is_left_alone(
    driver: Driver, change: Callable[[Driver, LeaseProof], Awaitable[None]]
) -> None:
    """A sweep that was slow decided from a version that is no more."""
    held = (await driver.started(policy=TIMED)).proof
    driver.clock.advance(SOON_MS)
    backend = driver.engine.deps.store.backend
    page = await backend.due(100)
    decided = [on_due(record, DueContext(), page.now) for record in page.records]
    plans = [plan for _, plan in filter(None, decided)]
    assert [plan.rule for plan in plans] == ["expire"]
    await change(driver, held)
    before = await driver.snapshot()
    (answer,) = await backend.apply(plans)
    assert isinstance(answer, Refused)
    assert await driver.snapshot() == before


async def test_a_reclaimed_execution_has_a_fresh_time_limit(driver: Driver) -> None:
    await driver.submit(policy={"timeout_policy": {"attempt_timeout_ms": 40_000}})
    await driver.claim(lease_ms=10_000)
    await driver.pass_time(30_000)
    claimed = await driver.claim(lease_ms=60_000)
    assert (await driver.pass_time(39_999)).counts == {}
    assert (await driver.pass_time(1)).of("attempt_timeout") == 1
    assert (await driver.record(claimed.execution_id)).state == "expired"


async def test_a_paused_attempt_s_clock_stands_still(driver: Driver) -> None:
    held = (await driver.started(policy=TIMED)).proof
    driver.clock.advance(600)
    await driver.engine.outcomes.delay(held, for_ms=0)
    assert (await driver.pass_time(600_000)).counts == {}
    await driver.claim()
    assert (await driver.pass_time(399)).counts == {}
    assert (await driver.pass_time(1)).of("attempt_timeout") == 1


async def test_people_s_holds_are_never_lifted_by_time(driver: Driver) -> None:
    for reason in ("paused_by_operator", "paused_by_policy"):
        await driver.engine.scheduling.block(await driver.submit(), reason, look_in_ms=5)
    assert (await driver.pass_time(86_400_000)).counts == {}


# ---- holds that time lifts


async def register(driver: Driver, instance: str, *capabilities: str) -> None:
    registration = Registration(
        worker_id="pool",
        worker_instance_id=instance,
        lanes=frozenset({"default"}),
        capabilities=frozenset(capabilities),
        ttl_ms=600_000,
    )
    await driver.engine.workers.register_worker(registration)


async def test_a_route_hold_is_lifted_by_one_worker_that_has_it_all(driver: Driver) -> None:
    policy = {"routing_requirements": {"required_capabilities": ["a", "b"]}}
    execution_id = await driver.submit(policy=policy)
    await driver.engine.scheduling.block(execution_id, "waiting_for_capable_worker")
    await register(driver, "w-1", "a")
    await register(driver, "w-2", "b")
    await driver.pass_time(5_000)
    assert (await driver.record(execution_id)).state == "blocked"
    await register(driver, "w-3", "a", "b")
    await driver.pass_time(5_000)
    assert (await driver.record(execution_id)).state == "waiting"


async def test_a_long_block_is_looked_at_less_often(driver: Driver) -> None:
    execution_id = await driver.submit(policy=GPU)
    await driver.engine.scheduling.block(execution_id, "waiting_for_capable_worker")
    pauses = []
    for _ in range(9):
        record = await driver.record(execution_id)
        pauses.append(record.wake_at - driver.clock())
        await driver.pass_time(pauses[-1])
    assert pauses == [5_000, 5_000, 5_000, 7_500, 11_250, 16_875, 25_312, 37_968, 56_952]


# ---- many, and other people's


async def test_everything_due_is_done_in_one_visit(driver: Driver) -> None:
    due = driver.clock() + 10
    for _ in range(250):
        await driver.submit(delay_until=due)
    later = await driver.submit(delay_until=due + 1)
    assert (await driver.pass_time(10)).of("delayed_promoter") == 250
    assert (await driver.record(later)).state == "delayed"


async def test_entries_that_stay_due_do_not_hide_those_behind_them(
    driver: Driver, engine: Engine
) -> None:
    for _ in range(200):
        await driver.submit(delay_until=driver.clock() + 1, namespace="other")
    mine = await driver.submit(delay_until=driver.clock() + 2)
    driver.clock.advance(5)
    result = await TimerSweep(engine, DutyFilter(namespace="default")).visit()
    assert result.of("delayed_promoter") == 1
    assert result.of("timer_sweep", "skipped") == 200
    assert (await driver.record(mine)).state == "waiting"


async def test_a_filter_by_tag_touches_only_what_carries_it(driver: Driver, engine: Engine) -> None:
    due = driver.clock() + 1
    mine = await driver.submit(delay_until=due, tags={"app.case": "7"})
    await driver.submit(delay_until=due, tags={"app.case": "8"})
    await driver.submit(delay_until=due)
    driver.clock.advance(1)
    only = DutyFilter(namespace="default", instance_tag=("app.case", "7"))
    assert (await TimerSweep(engine, only).visit()).of("delayed_promoter") == 1
    assert (await driver.record(mine)).state == "waiting"


async def test_a_killed_worker_s_task_runs_again_without_an_operator(driver: Driver) -> None:
    await driver.submit(policy=RETRIES)
    dead = await driver.claim(lease_ms=10_000)
    await driver.pass_time(10_000)
    alive = await driver.claim(worker_instance_id="pool-2")
    assert alive.execution_id == dead.execution_id
    await driver.engine.outcomes.complete(alive.proof)
    assert await driver.completions() == [(dead.execution_id, "success")]


# ---- items that fail


class Stubborn:
    """A store that cannot change one of its records."""

    def __init__(self, backend: Backend, target: str) -> None:
        self._backend = backend
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    async def apply(self, plans: Sequence[Plan]) -> list[Any]:
        answers = await self._backend.apply([plan for plan in plans if plan.target != self._target])
        rest = iter(answers)
        return [Bug("stuck") if plan.target == self._target else next(rest) for plan in plans]


async def test_an_item_that_always_fails_is_left_alone_for_a_while(
    driver: Driver, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    """Three tries, ten cycles of rest, and so on; the others are served in every cycle."""
    due = driver.clock() + 1
    stuck = await driver.submit(delay_until=due)
    driver.clock.advance(1)
    engine = engine_on(cast(Backend, Stubborn(backend, stuck)))
    sweep = TimerSweep(engine)
    failures = []
    for _ in range(30):
        other = await driver.submit(delay_until=driver.clock() + 1)
        driver.clock.advance(1)
        result = await sweep.visit()
        failures.append(result.of("delayed_promoter", "error"))
        assert result.of("delayed_promoter") == 1
        assert (await driver.record(other)).state == "waiting"
    assert failures == ([1] * 3 + [0] * 10) * 2 + [1] * 3 + [0]
    assert "persistent failure" in caplog.text
    await engine.close()
    await driver.sweep()
    assert (await driver.record(stuck)).state == "waiting"


async def test_due_work_of_others_does_not_hide_the_own(driver: Driver) -> None:
    engine, number = driver.engine, PAGE * MOST_PAGES + 1
    begin = driver.clock() + 1_000
    foreign = Submission(kind="k", namespace="others", delay_until=begin)
    for start in range(0, number, 200):
        await engine.executions.create_many([foreign] * min(200, number - start))
    own = await driver.submit(delay_until=begin + 1)
    driver.clock.advance(2_000)
    sweep = TimerSweep(engine, DutyFilter(namespace="default"))
    await sweep.visit()
    assert (await driver.record(own)).state == "waiting"
    counts = (await engine.reads.count_executions(namespace="others")).counts
    assert counts == {"delayed": number}


async def test_a_visit_goes_on_where_the_last_one_stopped(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep_module, "PAGE", 2)
    monkeypatch.setattr(sweep_module, "MOST_PASSED", 3)
    begin = driver.clock() + 1_000
    for _ in range(20):
        await driver.submit(namespace="others", delay_until=begin)
    own = await driver.submit(delay_until=begin + 1)
    driver.clock.advance(2_000)
    sweep = TimerSweep(driver.engine, DutyFilter(namespace="default"))
    visits = 0
    while (await driver.record(own)).state == "delayed":
        await sweep.visit()
        visits += 1
    assert visits == 4
    # At the end it begins anew.
    later = await driver.submit(delay_until=driver.clock() + 1)
    driver.clock.advance(1)
    for _ in range(4):
        await sweep.visit()
    assert (await driver.record(later)).state == "waiting"
