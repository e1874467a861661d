"""How an attempt ends or pauses: complete, fail, delay, hand back."""

from typing import Any

import msgspec
import pytest

from flowfabric.core.rules.attempts import Failure
from flowfabric.engine import Engine
from flowfabric.engine.attempts.outcomes import Done
from flowfabric.errors import (
    FlowFabricError,
    InvalidInput,
    PayloadTooLarge,
)
from tests.conformance.driver import (
    NOWHERE,
    RETRIES,
    TRANSIENT,
    Driver,
    fenced,
    guess,
    refused,
)

# ---- complete


@pytest.mark.parametrize("result", [None, b"", b"\0\xff", bytes(1024 * 1024)])
async def test_completing_keeps_the_result_and_ends_everything(
    driver: Driver, result: bytes | None
) -> None:
    held = await driver.reach("active")
    driver.clock.advance(11)
    done = await driver.engine.outcomes.complete(held, result, "raw")
    assert done == Done(held.execution_id, "completed", was="active", now=driver.clock())
    await driver.assert_final(held, "completed", "success")
    record = await driver.record(held.execution_id)
    assert (record.next, record.attempt_id, record.result_encoding) == ("", held.attempt_id, "raw")
    assert await driver.result(held.execution_id) == result
    (attempt,) = await driver.attempts(held.execution_id)
    assert (attempt.state, attempt.ended_at) == ("ended_success", driver.clock())
    assert (attempt.closed_at, attempt.closed_reason) == (driver.clock(), "attempt_success")


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"result": bytes(1024 * 1024 + 1)}, PayloadTooLarge),
        ({"result": "text"}, InvalidInput),
        ({"result": 7}, InvalidInput),
        ({"encoding": "x" * 129}, InvalidInput),
        ({"op": "x" * 65}, InvalidInput),
    ],
)
async def test_a_bad_result_leaves_the_attempt_running(
    driver: Driver, fields: dict[str, Any], error: type[FlowFabricError]
) -> None:
    held = await driver.reach("active")
    before = await driver.snapshot()
    with refused(error):
        await driver.engine.outcomes.complete(held, **fields)
    assert await driver.snapshot() == before


# ---- fail


async def test_failing_for_good_keeps_the_reason(driver: Driver) -> None:
    held = await driver.reach("active")
    done = await driver.engine.outcomes.fail(held, Failure("no such file", "permanent"))
    assert done == Done(held.execution_id, "failed", was="active", now=driver.clock())
    await driver.assert_final(held, "failed", "failed")
    record = await driver.record(held.execution_id)
    assert (record.failure_reason, record.failure_category) == ("no such file", "permanent")
    assert (record.retry_count, record.attempt_id) == (0, held.attempt_id)
    (attempt,) = await driver.attempts(held.execution_id)
    assert (attempt.state, attempt.closed_reason) == ("ended_failure", "attempt_failure")
    assert (attempt.failure_reason, attempt.failure_category) == ("no such file", "permanent")


async def test_failing_with_retries_left_backs_off(driver: Driver) -> None:
    deadline = driver.clock() + 99_000
    held = await driver.reach("active", policy=RETRIES, deadline_at=deadline)
    driver.clock.advance(7)
    done = await driver.engine.outcomes.fail(held, TRANSIENT)
    now = driver.clock()
    assert done == Done(
        held.execution_id,
        "delayed",
        delay_until=now + 500,
        next_attempt_index=1,
        was="active",
        now=now,
    )
    await driver.assert_released(held)
    record = await driver.record(held.execution_id)
    assert (record.state, record.reason, record.next) == ("delayed", "retry_backoff", "retry")
    assert (record.wake_at, record.due_at, record.deadline_at) == (now + 500, now + 500, deadline)
    assert (record.retry_reason, record.previous_attempt) == ("flaky", 0)
    assert (record.retry_count, record.attempt_id) == (1, "")
    assert (record.failure_reason, record.failure_category) == ("flaky", "transient")
    (attempt,) = await driver.attempts(held.execution_id)
    assert (attempt.state, attempt.closed_reason) == ("ended_failure", "attempt_failure")
    assert await driver.completions() == []


async def test_retries_end_when_they_are_used_up(driver: Driver) -> None:
    policy = {"retry_policy": {"max_retries": 2, "backoff": {"type": "fixed", "delay_ms": 10}}}
    execution_id = await driver.submit(policy=policy)
    states = []
    for _ in range(3):
        held = (await driver.claim()).proof
        states.append((await driver.engine.outcomes.fail(held, TRANSIENT)).public_state)
        await driver.pass_time(10)
    assert states == ["delayed", "delayed", "failed"]
    record = await driver.record(execution_id)
    assert (record.attempt_count, record.retry_count, record.reclaim_count) == (3, 2, 0)
    assert await driver.completions() == [(execution_id, "failed")]


# (retry policy, category, retryable) -> whether a first failure is retried
RETRIED: list[tuple[dict[str, object] | None, str, bool | None, bool]] = [
    (None, "transient", None, False),
    (None, "transient", True, False),
    ({}, "transient", None, True),
    ({}, "transient", True, True),
    ({}, "transient", False, False),
    ({}, "infra_crash", None, True),
    ({}, "timeout", None, True),
    ({}, "my_own", None, True),
    ({}, "", None, True),
    ({}, "permanent", None, False),
    ({}, "cancelled", None, False),
    ({}, "budget_exceeded", None, False),
    ({}, "permanent", True, False),
    ({"max_retries": 0}, "transient", None, False),
    ({"max_retries": 1}, "transient", None, True),
    ({"retryable_categories": ["timeout"]}, "timeout", None, True),
    ({"retryable_categories": ["timeout"]}, "transient", None, False),
    ({"retryable_categories": ["permanent"]}, "permanent", None, True),
    ({"retryable_categories": ["permanent"]}, "permanent", False, False),
    ({"retryable_categories": ["budget_exceeded"]}, "budget_exceeded", None, True),
]


@pytest.mark.parametrize(("policy", "category", "retryable", "retried"), RETRIED)
async def test_the_stored_policy_decides_on_a_retry(
    driver: Driver,
    policy: dict[str, object] | None,
    category: str,
    retryable: bool | None,
    retried: bool,
) -> None:
    held = await driver.reach("active", policy={"retry_policy": policy})
    failure = Failure("why", category, retryable)
    done = await driver.engine.outcomes.fail(held, failure)
    assert done.public_state == ("delayed" if retried else "failed")


BACKOFFS: list[tuple[dict[str, object] | None, list[int]]] = [
    (None, [1_000, 2_000, 4_000]),
    ({"type": "exponential"}, [1_000, 2_000, 4_000]),
    ({"type": "fixed"}, [1_000, 1_000]),
    ({"type": "fixed", "delay_ms": 250}, [250, 250]),
    ({"type": "fixed", "delay_ms": 0}, [0, 0]),
    ({"type": "exponential", "initial_delay_ms": 100, "multiplier": 1.5}, [100, 150, 225, 337]),
    ({"type": "exponential", "initial_delay_ms": 400, "max_delay_ms": 1_000}, [400, 800, 1_000]),
    ({"type": "exponential", "initial_delay_ms": 90_000}, [60_000, 60_000]),
    ({"type": "exponential", "multiplier": 0.5}, [1_000, 500, 250]),
]


@pytest.mark.parametrize(("backoff", "delays"), BACKOFFS)
async def test_backoff_grows_as_the_policy_says(
    driver: Driver, backoff: dict[str, object] | None, delays: list[int]
) -> None:
    await driver.submit(policy={"retry_policy": {"max_retries": 9, "backoff": backoff}})
    seen = []
    for _ in delays:
        held = (await driver.claim()).proof
        done = await driver.engine.outcomes.fail(held, TRANSIENT)
        seen.append(done.delay_until - driver.clock())
        await driver.pass_time(seen[-1])
    assert seen == delays


@pytest.mark.parametrize(("luck", "delay"), [(0.0, 500), (0.5, 750), (1.0, 1_000)])
async def test_jitter_spreads_over_the_upper_half(
    driver: Driver, engine: Engine, luck: float, delay: int
) -> None:
    engine.deps.chance = lambda: luck
    backoff = {"type": "exponential", "jitter": True}
    held = await driver.reach("active", policy={"retry_policy": {"backoff": backoff}})
    done = await engine.outcomes.fail(held, TRANSIENT)
    assert done.delay_until - driver.clock() == delay


async def test_a_policy_of_another_release_still_means_a_retry(driver: Driver) -> None:
    """A stored backoff this release does not know waits a second."""
    held = await driver.reach("active", policy=RETRIES)
    record = held.record
    assert record
    unknown = record.policy.replace('"type":"fixed"', '"type":"fibonacci"')
    assert unknown != record.policy
    held = msgspec.structs.replace(held, record=msgspec.structs.replace(record, policy=unknown))
    done = await driver.engine.outcomes.fail(held, TRANSIENT)
    assert done.delay_until - driver.clock() == 1_000


async def test_a_server_decides_from_the_stored_policy(driver: Driver) -> None:
    """A process that did not make the claim knows neither policy nor counters."""
    held = await driver.reach("active", policy=RETRIES)
    done = await driver.engine.outcomes.fail(fenced(held), TRANSIENT)
    assert (done.public_state, done.next_attempt_index) == ("delayed", 1)


@pytest.mark.parametrize(
    "failure",
    [
        Failure("x" * 4_097, "transient"),
        Failure("why", "x" * 129),
        Failure(7, "transient"),  # type: ignore[arg-type]
        Failure("why", None),  # type: ignore[arg-type]
    ],
)
async def test_a_bad_failure_leaves_the_attempt_running(driver: Driver, failure: Failure) -> None:
    held = await driver.reach("active", policy=RETRIES)
    before = await driver.snapshot()
    with refused(InvalidInput):
        await driver.engine.outcomes.fail(held, failure)
    assert await driver.snapshot() == before


# ---- delay


async def test_a_delay_pauses_the_attempt_and_its_clock(driver: Driver) -> None:
    held = await driver.reach("active", policy={"timeout_policy": {"attempt_timeout_ms": 9_000}})
    driver.clock.advance(4_000)
    done = await driver.engine.outcomes.delay(held, for_ms=60_000)
    now = driver.clock()
    assert done == Done(
        held.execution_id, "delayed", delay_until=now + 60_000, was="active", now=now
    )
    await driver.assert_released(held)
    record = await driver.record(held.execution_id)
    assert (record.state, record.reason, record.next) == ("delayed", "delay", "resume")
    assert (record.wake_at, record.due_at) == (now + 60_000, now + 60_000)
    assert (record.attempt_id, record.attempt_left_ms) == (held.attempt_id, 5_000)
    assert (record.retry_count, record.attempt_count) == (0, 1)
    (attempt,) = await driver.attempts(held.execution_id)
    assert (attempt.state, attempt.suspension_id) == ("suspended", "worker_delay")
    assert (attempt.suspended_at, attempt.ended_at, attempt.closed_at) == (now, 0, 0)
    assert await driver.completions() == []


async def test_a_past_delay_is_promoted_at_the_next_sweep(driver: Driver) -> None:
    held = await driver.reach("active")
    done = await driver.engine.outcomes.delay(held, until=driver.clock() - 1_000)
    assert done.public_state == "delayed"
    assert await driver.claim_all() == []
    await driver.sweep()
    assert (await driver.claim()).kind == "resumed"


async def test_handing_back_is_claimable_at_once_and_costs_no_retry(driver: Driver) -> None:
    held = await driver.reach("active", policy=RETRIES)
    done = await driver.engine.outcomes.delay(held, for_ms=0)
    assert done == Done(held.execution_id, "waiting", was="active", now=driver.clock())
    record = await driver.record(held.execution_id)
    assert (record.state, record.reason, record.next) == ("waiting", "", "resume")
    assert (record.wake_at, record.due_at, record.retry_count) == (0, 0, 0)
    claimed = await driver.claim()
    assert (claimed.kind, claimed.record.attempt_id) == ("resumed", held.attempt_id)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"until": 1, "for_ms": 1},
        {"for_ms": -1},
        {"until": -1},
        {"for_ms": True},
        {"for_ms": 1.5},
        {"until": "1"},
        {"until": float("nan")},
        {"for_ms": 2**53},
    ],
)
async def test_a_bad_delay_comes_before_everything_else(
    driver: Driver, fields: dict[str, Any]
) -> None:
    held = await driver.reach("active")
    before = await driver.snapshot()
    with refused(InvalidInput):
        await driver.engine.outcomes.delay(held, **fields)
    with refused(InvalidInput):
        await driver.engine.outcomes.delay(guess(NOWHERE), **fields)
    assert await driver.snapshot() == before
