"""Whether a failure is retried, and after how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.policy import ExponentialBackoff, FixedBackoff, RetryBackoff, RetryPolicy
from flowfabric.core.retry import decide_retry, may_retry_timeout

DEFAULT = RetryPolicy()


def delay(backoff: RetryBackoff, retry_count: int, jitter: float = 0.0) -> int | None:
    """The pause when nothing stands against a retry."""
    policy = RetryPolicy(max_retries=2**32 - 1, backoff=backoff)
    return decide_retry(policy, retry_count, "transient", None, jitter)


def test_without_a_policy_nothing_is_retried() -> None:
    assert decide_retry(None, 0, "transient", None, 0.5) is None
    assert decide_retry(None, 0, "transient", True, 0.5) is None


@pytest.mark.parametrize(
    ("retry_count", "expected"), [(0, 1000), (1, 2000), (2, 4000), (3, None), (4, None)]
)
def test_the_default_policy_retries_three_times_and_doubles(
    retry_count: int, expected: int | None
) -> None:
    assert decide_retry(DEFAULT, retry_count, "transient", None, 0.5) == expected


def test_a_policy_may_allow_no_retries() -> None:
    assert decide_retry(RetryPolicy(max_retries=0), 0, "transient", True, 0.5) is None


@pytest.mark.parametrize(("retryable", "retried"), [(None, True), (True, True), (False, False)])
def test_a_caller_can_forbid_a_retry_but_not_force_one(
    retryable: bool | None, retried: bool
) -> None:
    assert (decide_retry(DEFAULT, 0, "transient", retryable, 0.5) is not None) == retried
    assert decide_retry(DEFAULT, 0, "permanent", retryable, 0.5) is None
    assert decide_retry(DEFAULT, 3, "transient", retryable, 0.5) is None


@pytest.mark.parametrize(
    ("category", "retried"),
    [
        ("transient", True),
        ("infra_crash", True),
        ("timeout", True),
        ("handler_error", True),
        ("anything", True),
        ("", True),
        ("permanent", False),
        ("cancelled", False),
        ("budget_exceeded", False),
    ],
)
def test_without_a_list_most_categories_are_retried(category: str, retried: bool) -> None:
    assert (decide_retry(DEFAULT, 0, category, None, 0.5) is not None) == retried


@pytest.mark.parametrize(
    ("category", "retried"),
    [("transient", False), ("timeout", True), ("permanent", True), ("", False)],
)
def test_a_list_of_categories_decides_alone(category: str, retried: bool) -> None:
    policy = RetryPolicy(retryable_categories=("timeout", "permanent"))
    assert (decide_retry(policy, 0, category, None, 0.5) is not None) == retried


@pytest.mark.parametrize("retry_count", [0, 1, 50])
def test_a_fixed_backoff_never_grows(retry_count: int) -> None:
    assert delay(FixedBackoff(), retry_count) == 1000
    assert delay(FixedBackoff(delay_ms=7), retry_count, jitter=1.0) == 7
    assert delay(FixedBackoff(delay_ms=0), retry_count) == 0


@pytest.mark.parametrize(
    ("backoff", "retry_count", "expected"),
    [
        (ExponentialBackoff(), 5, 32_000),
        (ExponentialBackoff(), 6, 60_000),
        (ExponentialBackoff(), 2**32 - 2, 60_000),
        (ExponentialBackoff(initial_delay_ms=100, multiplier=1.5), 3, 337),
        (ExponentialBackoff(initial_delay_ms=100, multiplier=1.0), 9, 100),
        (ExponentialBackoff(initial_delay_ms=100, multiplier=0.5), 1, 50),
        (ExponentialBackoff(initial_delay_ms=100, multiplier=0.5), 10**6, 0),
        (ExponentialBackoff(initial_delay_ms=100, multiplier=0.0), 0, 100),
        (ExponentialBackoff(initial_delay_ms=100, multiplier=0.0), 1, 0),
        (ExponentialBackoff(initial_delay_ms=5000, max_delay_ms=10), 0, 10),
        (ExponentialBackoff(multiplier=1e308), 1, 60_000),
        (ExponentialBackoff(multiplier=1e308), 2, 60_000),
        (ExponentialBackoff(initial_delay_ms=0), 10**6, 0),
    ],
)
def test_an_exponential_backoff_grows_up_to_its_limit(
    backoff: ExponentialBackoff, retry_count: int, expected: int
) -> None:
    assert delay(backoff, retry_count) == expected


@pytest.mark.parametrize(
    ("jitter", "expected"), [(0.0, 2000), (0.5, 3000), (1.0, 4000), (0.3333, 2666)]
)
def test_jitter_spreads_the_pause_over_its_upper_half(jitter: float, expected: int) -> None:
    assert delay(ExponentialBackoff(jitter=True), 2, jitter) == expected
    assert delay(ExponentialBackoff(jitter=False), 2, jitter) == 4000


@given(
    st.builds(
        ExponentialBackoff,
        initial_delay_ms=st.integers(0, 2**52),
        max_delay_ms=st.integers(0, 2**52),
        multiplier=st.floats(0, allow_infinity=False, allow_nan=False),
        jitter=st.booleans(),
    ),
    st.integers(0, 2**32 - 2),
    st.floats(0, 1),
)
def test_no_backoff_ever_overflows(
    backoff: ExponentialBackoff, retry_count: int, jitter: float
) -> None:
    pause = delay(backoff, retry_count, jitter)
    assert isinstance(pause, int)
    assert 0 <= pause <= backoff.max_delay_ms


@pytest.mark.parametrize(
    ("policy", "retry_count", "allowed"),
    [
        (None, 0, False),
        (RetryPolicy(), 0, False),
        (RetryPolicy(retryable_categories=("transient",)), 0, False),
        (RetryPolicy(retryable_categories=("timeout",)), 0, True),
        (RetryPolicy(retryable_categories=("transient", "timeout")), 2, True),
        (RetryPolicy(retryable_categories=("timeout",)), 3, False),
        (RetryPolicy(retryable_categories=("timeout",), max_retries=0), 0, False),
    ],
)
def test_a_timeout_is_retried_only_when_the_policy_names_it(
    policy: RetryPolicy | None, retry_count: int, allowed: bool
) -> None:
    assert may_retry_timeout(policy, retry_count) == allowed
    if allowed:
        assert decide_retry(policy, retry_count, "timeout", None, 0.5) is not None
