"""The plans of a failed or timed-out attempt: try again by the stored policy, or end."""

from typing import Any, Final

import pytest

from flowfabric.core.due import time_out
from flowfabric.core.facets import blocking_detail
from flowfabric.core.plan import EndAttempt, Plan, Timer
from flowfabric.core.rules.attempts import Failure, fail
from flowfabric.core.transition import transition
from tests.unit.core.records import EXECUTION, FENCE, NOW, record_in

FIXED: Final = '{"retry_policy":{"max_retries":2,"backoff":{"type":"fixed","delay_ms":700}}}'
GROWING: Final = '{"retry_policy":{"max_retries":9}}'
JITTERED: Final = (
    '{"retry_policy":{"backoff":{"type":"exponential","initial_delay_ms":1000,"jitter":true}}}'
)
LISTED: Final = '{"retry_policy":{"retryable_categories":["oom","permanent"]}}'
TIMEOUTS: Final = '{"retry_policy":{"max_retries":1,"retryable_categories":["timeout"]}}'


def failing(
    policy: str = "",
    *,
    category: str = "transient",
    retryable: bool | None = None,
    jitter: float = 0.5,
    **fields: Any,
) -> Plan:
    record = record_in("active", policy=policy, **fields)
    return fail(record, FENCE, Failure("it broke", category, retryable), jitter, "op-1")


def is_retry(plan: Plan) -> bool:
    assert plan.set["state"] in ("delayed", "failed")
    return bool(plan.set["state"] == "delayed")


@pytest.mark.parametrize(
    ("policy", "fields", "retried"),
    [
        ("", {}, False),
        ("{}", {}, False),
        ("not json", {}, False),
        ('{"retry_policy":{}}', {}, True),
        (FIXED, {"retry_count": 1}, True),
        (FIXED, {"retry_count": 2}, False),
        (FIXED, {"retryable": True}, True),
        (FIXED, {"retryable": False}, False),
        (FIXED, {"category": "permanent"}, False),
        (FIXED, {"category": "permanent", "retryable": True}, False),
        (LISTED, {"category": "permanent"}, True),
        (LISTED, {"category": "transient"}, False),
        (LISTED, {"category": "oom", "retry_count": 3}, False),
    ],
)
def test_the_stored_policy_decides_whether_a_failure_is_retried(
    policy: str, fields: dict[str, Any], retried: bool
) -> None:
    assert is_retry(failing(policy, **fields)) == retried


@pytest.mark.parametrize(
    ("policy", "retry_count", "jitter", "delay"),
    [
        (FIXED, 0, 0.0, 700),
        (FIXED, 1, 1.0, 700),
        (GROWING, 0, 0.0, 1_000),
        (GROWING, 3, 0.0, 8_000),
        (GROWING, 8, 0.0, 60_000),
        (JITTERED, 0, 0.0, 500),
        (JITTERED, 0, 1.0, 1_000),
        (JITTERED, 1, 0.5, 1_500),
    ],
)
def test_the_next_attempt_waits_for_the_backoff(
    policy: str, retry_count: int, jitter: float, delay: int
) -> None:
    plan = failing(policy, retry_count=retry_count, jitter=jitter)
    assert plan.timer == Timer(wake_in=delay)


def test_a_retry_ends_the_attempt_and_says_what_the_next_one_is_for() -> None:
    plan = failing(FIXED, retry_count=1, attempt_index=4)
    assert plan.set == {
        "state": "delayed",
        "reason": "retry_backoff",
        "next": "retry",
        "failure_reason": "it broke",
        "failure_category": "transient",
        "retry_reason": "it broke",
        "previous_attempt": 4,
        "retry_count": 2,
        "attempt_id": "",
    }
    assert plan.attempt == EndAttempt("ended_failure", "it broke", "transient")
    assert (plan.rule, plan.op, plan.close_stream) == ("fail", "op-1", "attempt_failure")
    assert plan.guard.fence == FENCE
    assert plan.event is not None
    assert plan.event.families == ("lease",), "a retry is no completion"
    assert plan.event.details == {"reason": "failed_retry_scheduled"}


def test_the_backoff_is_told_to_people() -> None:
    record = record_in("active", policy=FIXED, attempt_index=2)
    plan = fail(record, FENCE, Failure("no answer", "transient"), 0.5, "op-1")
    after = transition(record, plan, NOW).after
    expected = f"retry backoff until {NOW + 700} (attempt 2 failed: no answer)"
    assert blocking_detail(after) == expected


def test_a_failure_for_good_keeps_what_proves_it() -> None:
    plan = failing()
    assert plan.set == {
        "state": "failed",
        "failure_reason": "it broke",
        "failure_category": "transient",
    }
    assert plan.attempt == EndAttempt("ended_failure", "it broke", "transient")
    assert (plan.rule, plan.op, plan.close_stream) == ("fail", "op-1", "attempt_failure")
    assert plan.timer is None
    assert plan.event is not None
    assert plan.event.families == ("completion", "lease")
    assert plan.event.details == {"reason": "failed_terminal", "outcome": "failed"}


def test_a_deadline_survives_a_retry() -> None:
    record = record_in("active", policy=FIXED, deadline_at=NOW + 100)
    plan = fail(record, FENCE, Failure("it broke", ""), 0.5, "op-1")
    after = transition(record, plan, NOW).after
    assert (after.deadline_at, after.due_at) == (NOW + 100, NOW + 100)


@pytest.mark.parametrize(
    ("policy", "retry_count", "retried"),
    [
        ("", 0, False),
        (FIXED, 0, False),
        (LISTED, 0, False),
        (TIMEOUTS, 0, True),
        (TIMEOUTS, 1, False),
    ],
)
def test_an_attempt_out_of_time_is_retried_only_where_timeouts_are_listed(
    policy: str, retry_count: int, retried: bool
) -> None:
    record = record_in("active", policy=policy, retry_count=retry_count)
    plan = time_out(record, 0.5)
    assert plan.rule == "expire"
    assert plan.op == "", "the timer has no lease to name an operation by"
    assert (plan.guard.version, plan.guard.fence) == (record.version, None)
    assert plan.set["state"] == ("delayed" if retried else "expired")
    assert plan.attempt == EndAttempt(
        "ended_failure", "attempt_timeout", "timeout" if retried else ""
    )


def test_a_timed_out_attempt_that_is_retried_is_a_retry_like_any_other() -> None:
    record = record_in("active", policy=TIMEOUTS)
    plan = time_out(record, 0.5)
    assert plan.set["retry_reason"] == "attempt_timeout"
    assert plan.set["retry_count"] == 1
    assert plan.set["attempt_id"] == ""
    assert plan.timer == Timer(wake_in=1_000)
    assert plan.target == EXECUTION
