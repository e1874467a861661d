"""Execution policies: what a submitter may ask for, read strictly; what is stored, read leniently.

A misspelt member of a new policy must not pass in silence, so submissions are refused for it. A
stored policy was accepted once, perhaps by a newer release, so readers skip what they do not know.
"""

from collections.abc import Mapping
from functools import lru_cache
from math import isfinite
from typing import Final

import msgspec

from flowfabric.core.bounds import MAX_LIMIT_IDS, MAX_POLICY_BYTES, check_number
from flowfabric.core.capabilities import required_from
from flowfabric.core.faults import path_and_reason
from flowfabric.core.ids import check_text, parse_uuid
from flowfabric.core.policy_types import (
    EMPTY_POLICY,
    ExecutionPolicy,
    ExponentialBackoff,
    FallbackPolicy,
    FallbackTier,
    FixedBackoff,
    RetryBackoff,
    RetryPolicy,
    RoutingRequirements,
    StreamPolicy,
    SuspensionPolicy,
    TimeoutBehavior,
    TimeoutPolicy,
)
from flowfabric.errors import InvalidInput, InvalidPolicyJson

__all__ = [
    "EMPTY_POLICY",
    "ExecutionPolicy",
    "ExponentialBackoff",
    "FallbackPolicy",
    "FallbackTier",
    "FixedBackoff",
    "RawPolicy",
    "RetryBackoff",
    "RetryPolicy",
    "RoutingRequirements",
    "StreamPolicy",
    "SuspensionPolicy",
    "TimeoutBehavior",
    "TimeoutPolicy",
    "decode_policy",
    "freeze",
    "is_cacheable",
    "read_policy",
]

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
    return raw is None or (isinstance(raw, str | bytes) and len(raw) <= _CACHED_CHARACTERS)


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
    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        raise InvalidPolicyJson("malformed") from None
    return EMPTY_POLICY if value is None else _checked(value)


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
            parse_uuid(text, f"{field}[{index}]")
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
