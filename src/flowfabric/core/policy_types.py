"""The members of an execution policy, their types, limits and defaults."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

DAY_MS: Final = 86_400_000
DEFAULT_RECLAIM_CAP: Final = 100

# Stores add these to the present in doubles; up to here every sum is exact.
_MAX_MS: Final = 2**52
_MAX_U32: Final = 2**32 - 1
Count = Annotated[int, Meta(ge=0, le=_MAX_U32)]
Millis = Annotated[int, Meta(ge=0, le=_MAX_MS)]
Instant = Annotated[int, Meta(ge=-_MAX_MS, le=_MAX_MS)]
Priority = Annotated[int, Meta(ge=-_MAX_MS, le=_MAX_MS)]
TimeoutBehavior = Literal["fail", "cancel", "expire", "auto_resume_with_timeout_signal", "escalate"]


class FixedBackoff(Struct, frozen=True, omit_defaults=True, tag_field="type", tag="fixed"):
    """The same pause before every retry."""

    delay_ms: Millis = 1000


class ExponentialBackoff(
    Struct, frozen=True, omit_defaults=True, tag_field="type", tag="exponential"
):
    """Pauses that grow by `multiplier` up to a limit; `jitter` spreads them over the upper half."""

    initial_delay_ms: Millis = 1000
    max_delay_ms: Millis = 60_000
    multiplier: Annotated[float, Meta(ge=0)] = 2.0
    jitter: bool = False


RetryBackoff = FixedBackoff | ExponentialBackoff


class RetryPolicy(Struct, frozen=True, omit_defaults=True):
    """How often and when a failed attempt is tried again; the first attempt is no retry."""

    max_retries: Count = 3
    backoff: RetryBackoff = ExponentialBackoff()
    retryable_categories: tuple[str, ...] = ()


class TimeoutPolicy(Struct, frozen=True, omit_defaults=True):
    """How long an attempt and the whole execution may take."""

    attempt_timeout_ms: Millis | None = None
    execution_deadline_ms: Millis | None = None
    max_reclaim_count: Count = DEFAULT_RECLAIM_CAP


class SuspensionPolicy(Struct, frozen=True, omit_defaults=True):
    """What applies to a suspend that names no timeout of its own."""

    default_timeout_ms: Millis | None = None
    timeout_behavior: TimeoutBehavior = "fail"


class FallbackTier(Struct, frozen=True, omit_defaults=True):
    """One provider to fall back to."""

    provider: str
    model: str
    timeout_ms: Millis | None = None


class FallbackPolicy(Struct, frozen=True, omit_defaults=True):
    """Providers in order of preference; kept for handlers, not acted on."""

    tiers: tuple[FallbackTier, ...] = ()


class RoutingRequirements(Struct, frozen=True, omit_defaults=True):
    """Which workers may run it. Only the capabilities are enforced."""

    required_capabilities: tuple[str, ...] = ()
    preferred_locality: str | None = None
    isolation_level: str | None = None


class StreamPolicy(Struct, frozen=True, omit_defaults=True):
    """How output is kept."""

    durability_mode: Literal["buffered", "durable"] = "buffered"
    retention_maxlen: Count = 10_000
    retention_ttl_ms: Millis | None = None


class ExecutionPolicy(Struct, frozen=True, omit_defaults=True):
    """Everything a submitter may decide about an execution, frozen when it is created."""

    priority: Priority = 0
    delay_until: Instant | None = None
    retry_policy: RetryPolicy | None = None
    timeout_policy: TimeoutPolicy | None = None
    max_reclaim_count: Count | None = None
    suspension_policy: SuspensionPolicy | None = None
    fallback_policy: FallbackPolicy | None = None
    max_replay_count: Count = 10
    budget_ids: tuple[str, ...] = ()
    quota_ids: tuple[str, ...] = ()
    concurrency_key: str | None = None
    fairness_key: str | None = None
    concurrency_limit: Annotated[int, Meta(ge=1, le=_MAX_U32)] = 1
    routing_requirements: RoutingRequirements | None = None
    dedup_window_ms: Millis = DAY_MS
    stream_policy: StreamPolicy | None = None
    retention_ms: Millis | None = None
    max_signals_per_execution: Count = 10_000

    @property
    def reclaim_cap(self) -> int:
        """How often a lost lease is taken over before the execution fails."""
        if self.max_reclaim_count is not None:
            return self.max_reclaim_count
        timeouts = self.timeout_policy
        return DEFAULT_RECLAIM_CAP if timeouts is None else timeouts.max_reclaim_count

    @property
    def kept_for_ms(self) -> int:
        """How long the execution is kept after its end."""
        if self.retention_ms is not None:
            return self.retention_ms
        ttl = None if self.stream_policy is None else self.stream_policy.retention_ttl_ms
        return DAY_MS if ttl is None else ttl

    @property
    def required_capabilities(self) -> tuple[str, ...]:
        """The tokens a worker must offer, sorted."""
        routing = self.routing_requirements
        return () if routing is None else routing.required_capabilities


EMPTY_POLICY: Final = ExecutionPolicy()
