"""Execution policies: what a submitter may ask for, read strictly; what is stored, read leniently.

A misspelt member of a new policy must not pass in silence, so submissions are refused for it. A
stored policy was accepted once, perhaps by a newer release, so readers skip what they do not know.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from flowfabric.core.bounds import MAX_LIMIT_IDS, MAX_POLICY_BYTES, check_number
from flowfabric.core.capabilities import required_from
from flowfabric.core.faults import path_and_reason
from flowfabric.core.ids import check_text
from flowfabric.errors import InvalidInput, InvalidPolicyJson

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
    on_nondeterminism: Literal["park", "fail"] = "park"
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


RawPolicy = ExecutionPolicy | Mapping[str, object] | str | bytes | None

MAX_KEY_BYTES: Final = 128

# Longer texts are parsed each time: remembering them would let callers fill the memory.
_CACHED_CHARACTERS: Final = 4096


_PARTS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "retry_policy": RetryPolicy,
    "timeout_policy": TimeoutPolicy,
    "suspension_policy": SuspensionPolicy,
    "fallback_policy": FallbackPolicy,
    "routing_requirements": RoutingRequirements,
    "stream_policy": StreamPolicy,
}
_BACKOFFS: Final[Mapping[str, type[msgspec.Struct]]] = {
    "fixed": FixedBackoff,
    "exponential": ExponentialBackoff,
}


def decode_policy(raw: RawPolicy) -> ExecutionPolicy:
    """The policy of a submission, or the first thing that is wrong with it."""
    if raw is None:
        return EMPTY_POLICY
    if isinstance(raw, str | bytes):
        return _decode_text(raw)
    return _checked(msgspec.to_builtins(raw) if isinstance(raw, ExecutionPolicy) else raw)


def is_cacheable(raw: RawPolicy) -> bool:
    """Whether the policy may be cached by its text."""
    return isinstance(raw, str | bytes) and len(raw) <= _CACHED_CHARACTERS


def _decode_text(raw: str | bytes) -> ExecutionPolicy:
    if not raw:
        return EMPTY_POLICY
    _check_size(len(raw))
    try:
        text = raw if isinstance(raw, str) else raw.decode()
    except UnicodeDecodeError:
        raise InvalidPolicyJson("malformed") from None
    return _decode_once(text) if is_cacheable(text) else _decode(text)


def _decode(text: str) -> ExecutionPolicy:
    value = _parsed(text)
    return EMPTY_POLICY if value is None else _checked(value)


def _parsed(text: str | bytes) -> object:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        raise InvalidPolicyJson("malformed") from None


_decode_once: Final = lru_cache(maxsize=256)(_decode)


def read_policy(text: str) -> ExecutionPolicy:
    """A stored policy; a member that cannot be read counts as absent."""
    if not text:
        return EMPTY_POLICY
    return _read_once(text) if is_cacheable(text) else _read(text)


def _read(text: str) -> ExecutionPolicy:
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return EMPTY_POLICY
    if not isinstance(value, dict):
        return EMPTY_POLICY
    members = _Members(strict=False).of_policy(value)
    readable = {name: part for name, part in members.items() if _is_readable(name, part)}
    return msgspec.convert(readable, ExecutionPolicy)


_read_once: Final = lru_cache(maxsize=1024)(_read)


def _is_readable(name: str, value: object) -> bool:
    try:
        msgspec.convert({name: value}, ExecutionPolicy)
    except msgspec.ValidationError:
        return False
    return True


def stated_members(raw: RawPolicy) -> dict[str, object]:
    """What the policy of a submission states, by the names of today; values are not checked."""
    value: object = msgspec.to_builtins(raw) if isinstance(raw, ExecutionPolicy) else raw
    if isinstance(raw, str | bytes):
        _check_size(len(raw))
        value = _parsed(raw)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _malformed("policy: expected object")
    return _Members(strict=True).of_policy(value)


def freeze(policy: RawPolicy) -> str:
    """The text kept with the execution: canonical, without defaults, "" when nothing is left."""
    if not isinstance(policy, ExecutionPolicy):
        policy = decode_policy(policy)
    if policy == EMPTY_POLICY:
        return ""
    return msgspec.json.encode(policy).decode()


def _checked(value: object) -> ExecutionPolicy:
    if not isinstance(value, Mapping):
        raise _malformed("policy: expected object")
    members = _Members(strict=True).of_policy(value)
    _check_routing(members)
    try:
        policy = msgspec.convert(members, ExecutionPolicy)
        _check_values(policy)
    except msgspec.ValidationError as error:
        raise _malformed(path_and_reason(str(error), "policy")) from None
    except InvalidInput as error:
        raise _malformed(error.detail) from None
    except UnicodeEncodeError:
        raise _malformed("policy: not encodable as UTF-8") from None
    return _without_repeats(policy)


def _check_routing(members: dict[str, object]) -> None:
    """Requirements come first: read wrongly, they would let any worker take the execution."""
    routing = members.get("routing_requirements")
    if routing is None:
        return
    if not isinstance(routing, dict):
        raise InvalidPolicyJson("routing_requirements:not_object")
    if "required_capabilities" in routing:
        routing["required_capabilities"] = required_from(routing["required_capabilities"])


def _check_values(policy: ExecutionPolicy) -> None:
    """What the types alone do not say."""
    for field, ids in (("budget_ids", policy.budget_ids), ("quota_ids", policy.quota_ids)):
        check_number(ids, field, MAX_LIMIT_IDS)
        for index, text in enumerate(ids):
            check_text(text, f"{field}[{index}]", 256, allow_empty=False, allow_control=False)
    for field in ("concurrency_key", "fairness_key"):
        if (key := getattr(policy, field)) is not None:
            check_text(key, field, MAX_KEY_BYTES, allow_empty=False, allow_control=False)
    backoff = None if policy.retry_policy is None else policy.retry_policy.backoff
    if isinstance(backoff, ExponentialBackoff) and not isfinite(backoff.multiplier):
        raise InvalidInput("retry_policy.backoff.multiplier: expected a finite number")
    _check_size(len(msgspec.json.encode(policy)))


def _check_size(size: int) -> None:
    if size > MAX_POLICY_BYTES:
        raise _malformed(f"policy: at most {MAX_POLICY_BYTES} bytes, got {size}")


def _without_repeats(policy: ExecutionPolicy) -> ExecutionPolicy:
    """A limit named twice is still one limit: it must not be charged twice."""
    budgets, quotas = (
        tuple(dict.fromkeys(policy.budget_ids)),
        tuple(dict.fromkeys(policy.quota_ids)),
    )
    if budgets == policy.budget_ids and quotas == policy.quota_ids:
        return policy
    return msgspec.structs.replace(policy, budget_ids=budgets, quota_ids=quotas)


def _malformed(what: str) -> InvalidPolicyJson:
    return InvalidPolicyJson(f"malformed: {what}")


class _Members:
    """Brings the members of a policy into the one form its types describe.

    Nulls are dropped, older spellings replaced; unknown members are refused or skipped. Values of
    the wrong type are left alone: converting them gives the better message.
    """

    def __init__(self, *, strict: bool) -> None:
        self._strict = strict

    def of_policy(self, raw: Mapping[str, object]) -> dict[str, object]:
        """All members of a whole policy."""
        members = self._of(raw, ExecutionPolicy, "quota_policy_id")
        quota = members.pop("quota_policy_id", None)
        if quota is not None:
            if self._strict and "quota_ids" in members:
                raise _malformed("quota_policy_id: quota_ids is given too")
            members.setdefault("quota_ids", [quota])
        return members

    def _of(
        self, raw: Mapping[str, object], part: type[msgspec.Struct], extra: str | None = None
    ) -> dict[str, object]:
        members: dict[str, object] = {}
        for name, value in raw.items():
            if name not in part.__struct_fields__ and name != extra:
                if self._strict:
                    raise InvalidPolicyJson(f"unknown_member:{name}")
            elif value is not None:
                members[name] = self._value(name, value)
        return members

    def _value(self, name: str, value: object) -> object:
        if isinstance(value, Mapping):
            if name == "backoff":
                return self._backoff(value)
            return self._of(value, _PARTS[name]) if name in _PARTS else value
        if name == "tiers" and isinstance(value, list | tuple):
            return [self._of(t, FallbackTier) if isinstance(t, Mapping) else t for t in value]
        if name == "timeout_behavior" and value == "auto_resume":
            return "auto_resume_with_timeout_signal"
        return value

    def _backoff(self, raw: Mapping[str, object]) -> object:
        kind = raw.get("type")
        if kind is None:
            kind = "exponential"
        part = _BACKOFFS.get(kind) if isinstance(kind, str) else None
        if part is not None:
            return {**self._of(raw, part, "type"), "type": kind}
        # A strategy of another release still means "retry later": a second is a safe pause.
        return raw if self._strict else {"type": "fixed", "delay_ms": 1000}
