"""How a suspension ends by itself or by an operator."""

import msgspec
import pytest

from flowfabric.core.condition_checks import Fresh
from flowfabric.core.conditions import composite, signal_set
from flowfabric.core.documents import SUSPENSION
from flowfabric.core.facets import facets
from flowfabric.core.plan import Guard, Plan
from flowfabric.core.suspensions import ResumePolicy, write_document
from flowfabric.engine.executions.scheduling import TimedOut
from flowfabric.errors import (
    ExecutionNotFound,
    ExecutionNotSuspended,
    InvalidInput,
    WaitpointClosed,
)
from flowfabric.operations.executions import Executions
from flowfabric.operations.workers import Resumption
from tests.conformance.driver import EVERYWHERE, NOWHERE, Driver, refused
from tests.conformance.waiting import (
    Paused,
    all_of,
    documents,
    pause,
    pause_claimed,
    signals,
)
from tests.proofs import proves

AUTO = "auto_resume_with_timeout_signal"


async def time_out(paused: Paused, ms: int, *, directly: bool) -> None:
    if directly:
        paused.driver.clock.advance(ms)
        outcome = await paused.driver.engine.scheduling.expire_suspension(paused.execution_id)
        assert isinstance(outcome, TimedOut)
    else:
        assert (await paused.driver.pass_time(ms)).of("suspension_timeout") == 1


@pytest.mark.parametrize("directly", [False, True])
@pytest.mark.parametrize(
    ("behavior", "state", "attempt", "outcome"),
    [
        ("fail", "failed", "ended_failure", "failed"),
        ("", "failed", "ended_failure", "failed"),
        ("cancel", "cancelled", "ended_cancelled", "cancelled"),
        ("expire", "expired", "ended_failure", "expired"),
    ],
)
async def test_a_timeout_may_end_the_execution(
    driver: Driver, behavior: str, state: str, attempt: str, outcome: str, directly: bool
) -> None:
    retries = {"retry_policy": {"max_retries": 3}}
    paused = await pause(
        driver, timeout_ms=3_000, timeout_behavior=behavior, submit={"policy": retries}
    )
    behavior = behavior or "fail"
    await time_out(paused, 3_000, directly=directly)
    record = await driver.record(paused.execution_id)
    reason = f"suspension_timeout:{behavior}"
    assert (record.state, record.failure_reason) == (state, reason)
    assert (record.completed_at, record.suspension_id, record.wake_at) == (driver.clock(), "", 0)
    if behavior == "cancel":
        assert (record.cancellation_reason, record.cancelled_by) == (
            "suspension_timeout",
            "system_timeout",
        )
    (ended,) = await driver.attempts(paused.execution_id)
    assert (ended.state, ended.failure_reason) == (attempt, reason)
    assert ended.closed_reason == "suspension_timeout"
    kept = await paused.suspension()
    assert (kept.close_reason, kept.closed_at) == (f"timed_out_{behavior}", driver.clock())
    assert await driver.completions() == [(paused.execution_id, outcome)]
    assert [entry.event for entry in await driver.history(paused.execution_id)] == [
        "acquired",
        "released",
    ]
    facets(record, strict=True)


@pytest.mark.parametrize("directly", [False, True])
@pytest.mark.parametrize("behavior", [AUTO, "auto_resume"])
async def test_a_timeout_may_resume_at_once(driver: Driver, behavior: str, directly: bool) -> None:
    bindings = (Fresh("", "a"), Fresh("", "b"))
    paused = await pause(
        driver,
        composite(all_of("a", "b")),
        waitpoints=bindings,
        timeout_ms=3_000,
        timeout_behavior=behavior,
        resume_policy=ResumePolicy(resume_delay_ms=5_000),
    )
    await paused.signal(key="a")
    await time_out(paused, 3_000, directly=directly)
    record = await driver.record(paused.execution_id)
    assert (record.state, record.next, record.signal_count) == ("waiting", "resume", 2)
    kept = await paused.suspension()
    assert (kept.close_reason, kept.satisfied_at) == ("timed_out_auto_resume", 0)
    again = await paused.resumed()
    assert again.resumed_by == Resumption(paused.details.suspension_id, "timeout")
    assert again.record.attempt_id == paused.claimed.record.attempt_id
    shown = await driver.engine.signals.resume_signals(paused.execution_id, 0)
    assert shown.resumed_by == "timeout"
    (signal,) = shown.signals
    assert (signal.signal_name, signal.signal_category) == ("timeout", "system")
    assert (signal.source_type, signal.source_identity) == ("system", "suspension_timeout")
    assert signal.accepted_at == driver.clock()
    last = (await signals(driver, paused.execution_id))[-1]
    assert (last.waitpoint_id, last.seq) == (paused.at("a").waitpoint_id, 2)
    assert (await driver.events("signal"))[-1].details["signal_id"] == signal.signal_id
    assert await driver.completions() == []


@pytest.mark.parametrize("directly", [False, True])
async def test_a_timeout_may_ask_for_a_person(driver: Driver, directly: bool) -> None:
    paused = await pause(
        driver, signal_set("a", "b"), timeout_ms=3_000, timeout_behavior="escalate"
    )
    await paused.signal("a")
    suspended_at = driver.clock()
    await time_out(paused, 3_000, directly=directly)
    record = await driver.record(paused.execution_id)
    assert (record.state, record.reason, record.wake_at) == ("suspended", "operator", 0)
    assert record.detail == f"suspension escalated: timeout at {suspended_at + 3_000}"
    assert facets(record, strict=True).blocking_reason == "paused_by_operator"
    kept = await paused.suspension()
    assert (kept.reason_code, kept.timeout_at, kept.timeout_behavior) == (
        "waiting_for_operator_review",
        0,
        "",
    )
    assert (kept.close_reason, kept.created_at) == ("", suspended_at)
    (shown,) = (await driver.engine.waitpoints.list_pending_waitpoints(paused.execution_id)).items
    assert shown.expires_at == 0
    assert (await driver.pass_time(600_000)).of("suspension_timeout") == 0
    assert await paused.signal("b") == "resume_condition_satisfied"


async def test_a_timeout_fires_at_its_instant_and_once(driver: Driver) -> None:
    paused = await pause(driver, timeout_ms=3_000)
    assert (await driver.pass_time(2_999)).of("suspension_timeout") == 0
    assert (await driver.pass_time(1)).of("suspension_timeout") == 1
    assert (await driver.sweep()).of("suspension_timeout") == 0
    assert await paused.state() == "failed"


async def test_an_instant_that_has_passed_is_due_at_once(driver: Driver) -> None:
    paused = await pause(driver, timeout_at=driver.clock() - 1, timeout_behavior="expire")
    assert (await driver.sweep()).of("suspension_timeout") == 1
    assert await paused.state() == "expired"


async def test_the_deadline_stays_armed_while_suspended(driver: Driver) -> None:
    submit = {"deadline_at": driver.clock() + 2_000}
    paused = await pause(driver, timeout_ms=2_000, timeout_behavior=AUTO, submit=submit)
    result = await driver.pass_time(2_000)
    assert (result.of("execution_deadline"), result.of("suspension_timeout")) == (1, 0)
    assert await paused.state() == "expired"


async def test_a_behaviour_nobody_knows_fails(driver: Driver) -> None:
    paused = await pause(driver, timeout_ms=1_000)
    odd = msgspec.structs.replace(await paused.suspension(), timeout_behavior="explode")
    await driver.engine.deps.push(
        Plan(
            target=paused.execution_id,
            rule="timeout",
            guard=Guard(frozenset({"suspended"})),
            documents={SUSPENSION: write_document(odd)},
        )
    )
    await driver.pass_time(1_000)
    assert (await driver.record(paused.execution_id)).failure_reason == "suspension_timeout:fail"


async def test_an_unreadable_suspension_is_left_alone_and_stops_nobody(driver: Driver) -> None:
    broken = await pause(driver, timeout_ms=1_000)
    await driver.engine.deps.push(
        Plan(
            target=broken.execution_id,
            rule="timeout",
            guard=Guard(frozenset({"suspended"})),
            documents={SUSPENSION: b"\xc1"},
        )
    )
    other = await pause(driver, timeout_ms=1_000)
    result = await driver.pass_time(1_000)
    assert (result.of("suspension_timeout"), result.total("error")) == (1, 1)
    assert (await broken.state(), await other.state()) == ("suspended", "failed")


# ---- called directly


@pytest.mark.parametrize("situation", [each for each in EVERYWHERE if each != "suspended"])
async def test_what_is_not_suspended_has_no_timeout(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    expire = driver.engine.scheduling.expire_suspension
    assert await expire(held.execution_id) == "not_suspended_cleaned"
    assert await driver.snapshot() == before


async def test_nothing_due_is_no_error(driver: Driver) -> None:
    expire = driver.engine.scheduling.expire_suspension
    assert await expire(NOWHERE) == "not_found_cleaned"
    endless, later = await pause(driver), await pause(driver, timeout_ms=10)
    assert await expire(endless.execution_id) == "not_yet_due"
    driver.clock.advance(9)
    assert await expire(later.execution_id) == "not_yet_due"
    driver.clock.advance(1)
    assert await expire(later.execution_id) == TimedOut("fail", "failed")


@pytest.mark.parametrize(
    ("behavior", "answer"),
    [
        ("fail", TimedOut("fail", "failed")),
        ("cancel", TimedOut("cancel", "cancelled")),
        ("expire", TimedOut("expire", "expired")),
        (AUTO, TimedOut("auto_resume", "waiting")),
        ("escalate", TimedOut("escalate", "suspended")),
    ],
)
async def test_the_answer_names_the_behaviour(
    driver: Driver, behavior: str, answer: TimedOut
) -> None:
    paused = await pause(driver, timeout_ms=0, timeout_behavior=behavior)
    assert await driver.engine.scheduling.expire_suspension(paused.execution_id) == answer


# ---- an operator's resume


@proves(Executions.resume)
async def test_an_operator_resumes_whatever_the_condition_says(driver: Driver) -> None:
    bindings = (Fresh("", "a"), Fresh("", "b"))
    paused = await pause(driver, composite(all_of("a", "b")), waitpoints=bindings, timeout_ms=9_000)
    await paused.signal(key="b")
    resume = driver.engine.operators.resume
    assert (await resume(paused.execution_id, "operator")).public_state == "waiting"
    record = await driver.record(paused.execution_id)
    assert (record.state, record.next, record.wake_at, record.suspension_id) == (
        "waiting",
        "resume",
        0,
        "",
    )
    kept = await paused.suspension()
    assert (kept.close_reason, kept.trigger_type, kept.closer_signal_id) == (
        "resumed",
        "operator",
        "",
    )
    assert kept.closed_at == driver.clock()
    again = await paused.resumed()
    assert again.resumed_by == Resumption(paused.details.suspension_id, "operator")
    shown = await driver.engine.signals.resume_signals(paused.execution_id, 0)
    assert shown.resumed_by == "operator"
    assert len(shown.signals) == 1
    with refused(ExecutionNotSuspended):
        await resume(paused.execution_id)


@pytest.mark.parametrize(
    ("policy", "asked", "delay"), [(None, None, 0), (500, None, 500), (500, 0, 0), (500, 70, 70)]
)
async def test_the_delay_is_the_callers_or_the_policys(
    driver: Driver, policy: int | None, asked: int | None, delay: int
) -> None:
    paused = await pause(driver, resume_policy=ResumePolicy(resume_delay_ms=policy))
    resume = driver.engine.operators.resume
    state = (await resume(paused.execution_id, resume_delay_ms=asked)).public_state
    record = await driver.record(paused.execution_id)
    assert state == record.state == ("delayed" if delay else "waiting")
    if delay:
        assert (record.reason, record.detail) == ("resume_delay", f"resume delay {delay}ms")
        assert record.wake_at == driver.clock() + delay


@pytest.mark.parametrize("situation", [each for each in EVERYWHERE if each != "suspended"])
async def test_only_what_is_suspended_can_be_resumed(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    with refused(ExecutionNotSuspended):
        await driver.engine.operators.resume(held.execution_id)
    assert await driver.snapshot() == before


async def test_a_resume_is_checked_first(driver: Driver) -> None:
    resume = driver.engine.operators.resume
    with refused(ExecutionNotFound):
        await resume(NOWHERE)
    with refused(InvalidInput):
        await resume(NOWHERE, "whim")
    with refused(InvalidInput):
        await resume(NOWHERE, resume_delay_ms=-1)
    with refused(InvalidInput):
        await resume("nonsense")


async def test_after_a_resume_and_another_suspend_the_old_token_is_too_late(
    driver: Driver,
) -> None:
    first = await pause(driver)
    await driver.engine.operators.resume(first.execution_id)
    second = await pause_claimed(driver, await first.resumed())
    with refused(WaitpointClosed):
        await first.send()
    assert await second.state() == "suspended"


async def test_an_execution_whose_suspension_is_gone_can_still_be_resumed(driver: Driver) -> None:
    paused = await pause(driver)
    await driver.engine.deps.push(
        Plan(
            target=paused.execution_id,
            rule="timeout",
            guard=Guard(frozenset({"suspended"})),
            documents={SUSPENSION: None},
        )
    )
    assert (await driver.engine.operators.resume(paused.execution_id)).public_state == "waiting"
    again = await paused.resumed()
    assert again.resumed_by is None


async def test_a_pause_of_its_own_is_no_suspension(driver: Driver) -> None:
    """A worker that delayed itself after a suspension comes back from the delay."""
    paused = await pause(driver)
    await paused.signal()
    again = await paused.resumed()
    await driver.engine.outcomes.delay(again.proof, for_ms=0)
    third = await paused.resumed()
    assert third.resumed_by is None


async def test_everything_goes_with_the_execution(driver: Driver) -> None:
    paused = await pause(driver, idempotency_key="k", submit={"policy": {"retention_ms": 1_000}})
    await paused.signal(idempotency_key="s")
    done = await paused.resumed()
    await driver.engine.outcomes.complete(done.proof)
    assert len(await documents(driver, paused.execution_id)) == 5
    driver.clock.advance(1_000)
    assert await driver.engine.deps.store.backend.purge(10) == 1
