"""Running out of time: deadlines and attempts that take too long."""

from typing import Any

import pytest

from flowfabric.errors import (
    InvalidInput,
)
from tests.conformance.driver import (
    EVERYWHERE,
    FINAL,
    LIVE,
    NOWHERE,
    Driver,
    refused,
)


@pytest.mark.parametrize("situation", LIVE)
async def test_a_deadline_ends_every_live_state(driver: Driver, situation: str) -> None:
    held = await driver.reach(situation, deadline_at=driver.clock() + 1)
    before = await driver.record(held.execution_id)
    driver.clock.advance(1)
    expired = await driver.engine.scheduling.expire(held.execution_id, "execution_deadline")
    assert expired == "expired"
    await driver.assert_final(held, "expired", "expired")
    record = await driver.record(held.execution_id)
    assert (record.failure_reason, record.next) == ("execution_deadline", before.next)
    if before.attempt is not None:
        attempt = (await driver.attempts(held.execution_id))[-1]
        assert (attempt.state, attempt.failure_reason) == ("ended_failure", "execution_deadline")
        assert attempt.closed_reason == "expired"


@pytest.mark.parametrize("situation", EVERYWHERE)
@pytest.mark.parametrize("reason", ["attempt_timeout", "execution_deadline"])
async def test_nothing_expires_before_its_time(driver: Driver, situation: str, reason: Any) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    answer = await driver.engine.scheduling.expire(held.execution_id, reason)
    assert answer == ("already_terminal" if situation in FINAL else "not_yet_due")
    assert await driver.snapshot() == before


async def test_expiring_what_is_not_there_is_no_error(driver: Driver) -> None:
    assert await driver.engine.scheduling.expire(NOWHERE) == "not_found_cleaned"


async def test_only_the_two_timers_expire_an_execution(driver: Driver) -> None:
    execution_id = await driver.submit()
    with refused(InvalidInput):
        await driver.engine.scheduling.expire(execution_id, "boredom")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "answer"),
    [
        ({}, "expired"),
        ({"retry_policy": {}}, "expired"),
        ({"retry_policy": {"retryable_categories": ["transient"]}}, "expired"),
        ({"retry_policy": {"retryable_categories": ["timeout"]}}, "retry_scheduled"),
        ({"retry_policy": {"retryable_categories": ["timeout"], "max_retries": 0}}, "expired"),
    ],
)
async def test_an_attempt_that_runs_too_long_ends_or_is_retried_by_name(
    driver: Driver, policy: dict[str, object], answer: str
) -> None:
    timeouts = {"timeout_policy": {"attempt_timeout_ms": 1_000}}
    held = await driver.reach("active", policy=timeouts | policy)
    driver.clock.advance(999)
    assert await driver.engine.scheduling.expire(held.execution_id) == "not_yet_due"
    driver.clock.advance(1)
    assert await driver.engine.scheduling.expire(held.execution_id) == answer
    record = await driver.record(held.execution_id)
    (attempt,) = await driver.attempts(held.execution_id)
    assert (attempt.state, attempt.failure_reason) == ("ended_failure", "attempt_timeout")
    assert record.failure_reason == "attempt_timeout"
    await driver.assert_released(held)
    if answer == "expired":
        await driver.assert_final(held, "expired", "expired")
    else:
        assert (record.state, record.next, record.attempt_id) == ("delayed", "retry", "")
        assert (record.failure_category, record.retry_count) == ("timeout", 1)
        assert attempt.failure_category == "timeout"
        assert await driver.completions() == []
