"""Whether a failed attempt is tried again, and after how long."""

from math import floor
from typing import Final

from flowfabric.core.backoff import grown, spread
from flowfabric.core.policy import ExponentialBackoff, FixedBackoff, RetryBackoff, RetryPolicy

NEVER_RETRIED: Final = frozenset({"permanent", "cancelled", "budget_exceeded"})
"""Failure categories that need to be listed by name to be retried."""

TIMEOUT: Final = "timeout"


def decide_retry(
    policy: RetryPolicy | None,
    retry_count: int,
    category: str,
    retryable: bool | None,
    jitter: float,
) -> int | None:
    """The pause before the next attempt in ms, or None when there is none.

    `jitter` is the caller's luck, from 0 to 1; it matters only to policies that ask for it.
    """
    if policy is None or retryable is False or retry_count >= policy.max_retries:
        return None
    if not _is_allowed(policy, category):
        return None
    return delay_ms(policy.backoff, retry_count, jitter)


def may_retry_timeout(policy: RetryPolicy | None, retry_count: int) -> bool:
    """Whether an attempt that ran out of time is retried: only if the policy says so by name."""
    return (
        policy is not None
        and TIMEOUT in policy.retryable_categories
        and retry_count < policy.max_retries
    )


def _is_allowed(policy: RetryPolicy, category: str) -> bool:
    if policy.retryable_categories:
        return category in policy.retryable_categories
    return category not in NEVER_RETRIED


def delay_ms(backoff: RetryBackoff, retry_count: int, jitter: float) -> int:
    match backoff:
        case FixedBackoff():
            return backoff.delay_ms
        case ExponentialBackoff(initialdelay_ms, maxdelay_ms, multiplier, is_spread):
            delay = grown(initialdelay_ms, multiplier, maxdelay_ms, retry_count)
            return floor(spread(delay, jitter) if is_spread else delay)
