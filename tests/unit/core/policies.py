"""A policy with every member set, and ways to spoil it."""

import json

from flowfabric.core.policy import (
    ExecutionPolicy,
    ExponentialBackoff,
    FallbackPolicy,
    FallbackTier,
    RetryPolicy,
    RoutingRequirements,
    StreamPolicy,
    SuspensionPolicy,
    TimeoutPolicy,
)

UUID_A = "550e8400-e29b-41d4-a716-446655440000"
UUID_B = "11111111-2222-4333-8444-555555555555"

FULL: dict[str, object] = {
    "priority": 7,
    "delay_until": 1_700_000_000_000,
    "retry_policy": {
        "max_retries": 5,
        "backoff": {
            "type": "exponential",
            "initial_delay_ms": 10,
            "max_delay_ms": 20,
            "multiplier": 3,
            "jitter": True,
        },
        "retryable_categories": ["timeout"],
    },
    "timeout_policy": {
        "attempt_timeout_ms": 1,
        "execution_deadline_ms": 2,
        "max_reclaim_count": 3,
    },
    "max_reclaim_count": 4,
    "suspension_policy": {"default_timeout_ms": 5, "timeout_behavior": "escalate"},
    "fallback_policy": {
        "tiers": [
            {"provider": "p", "model": "m", "timeout_ms": 6},
            {"provider": "q", "model": "n"},
        ]
    },
    "max_replay_count": 8,
    "budget_ids": [UUID_B, UUID_A],
    "quota_ids": [UUID_A],
    "concurrency_key": "tenant-1",
    "fairness_key": "größe",
    "concurrency_limit": 2,
    "routing_requirements": {
        "required_capabilities": ["gpu", "cuda"],
        "preferred_locality": "eu",
        "isolation_level": "vm",
    },
    "dedup_window_ms": 0,
    "stream_policy": {
        "durability_mode": "durable",
        "retention_maxlen": 9,
        "retention_ttl_ms": 10,
    },
    "retention_ms": 11,
    "max_signals_per_execution": 12,
}

FULL_POLICY = ExecutionPolicy(
    priority=7,
    delay_until=1_700_000_000_000,
    retry_policy=RetryPolicy(
        max_retries=5,
        backoff=ExponentialBackoff(
            initial_delay_ms=10, max_delay_ms=20, multiplier=3.0, jitter=True
        ),
        retryable_categories=("timeout",),
    ),
    timeout_policy=TimeoutPolicy(
        attempt_timeout_ms=1, execution_deadline_ms=2, max_reclaim_count=3
    ),
    max_reclaim_count=4,
    suspension_policy=SuspensionPolicy(default_timeout_ms=5, timeout_behavior="escalate"),
    fallback_policy=FallbackPolicy(tiers=(FallbackTier("p", "m", 6), FallbackTier("q", "n"))),
    max_replay_count=8,
    budget_ids=(UUID_B, UUID_A),
    quota_ids=(UUID_A,),
    concurrency_key="tenant-1",
    fairness_key="größe",
    concurrency_limit=2,
    routing_requirements=RoutingRequirements(
        required_capabilities=("cuda", "gpu"), preferred_locality="eu", isolation_level="vm"
    ),
    dedup_window_ms=0,
    stream_policy=StreamPolicy(durability_mode="durable", retention_maxlen=9, retention_ttl_ms=10),
    retention_ms=11,
    max_signals_per_execution=12,
)

Path = tuple[str | int, ...]


def with_member(path: Path, value: object) -> dict[str, object]:
    """The full policy with one member replaced or added."""
    policy = json.loads(json.dumps(FULL))
    place = policy
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return policy  # type: ignore[no-any-return]


def spelled(path: Path) -> str:
    """A path as refusals write it."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return text.removeprefix(".")


def members(policy: object = FULL, path: Path = ()) -> list[Path]:
    """The path of every member at every depth."""
    items = (
        policy.items()
        if isinstance(policy, dict)
        else enumerate(policy)
        if isinstance(policy, list)
        else ()
    )
    found: list[Path] = []
    for step, value in items:
        found += [(*path, step), *members(value, (*path, step))]
    return found


OBJECTS: list[Path] = [
    (),
    ("retry_policy",),
    ("retry_policy", "backoff"),
    ("timeout_policy",),
    ("suspension_policy",),
    ("fallback_policy",),
    ("fallback_policy", "tiers", 1),
    ("routing_requirements",),
    ("stream_policy",),
]
