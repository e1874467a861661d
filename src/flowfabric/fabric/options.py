"""What a task may ask for, at its declaration and per call, and the policy that becomes of it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final, Literal, TypedDict

import msgspec

from flowfabric.core.ids import check_lane, check_namespace
from flowfabric.core.policy import (
    ExecutionPolicy,
    ExponentialBackoff,
    FixedBackoff,
    RetryPolicy,
    RoutingRequirements,
    StreamPolicy,
    SuspensionPolicy,
    TimeoutPolicy,
    decode_policy,
    freeze,
)
from flowfabric.core.tags import submitted_tags
from flowfabric.errors import ConfigError, FlowFabricError
from flowfabric.operations.executions import Submission
from flowfabric.worker.answers import HANDLER_ERROR
from flowfabric.worker.children import BoundCall
from flowfabric.worker.durations import Duration, instant_ms, milliseconds, optional_ms

RetryOn = type[Exception] | Sequence[type[Exception] | str]
BackoffOption = FixedBackoff | ExponentialBackoff | Duration


class Options(TypedDict, total=False):
    """Options as keywords. Those that are left out keep what was declared before."""

    lane: str
    namespace: str
    priority: int
    tags: Mapping[str, str]
    retries: int
    backoff: BackoffOption
    retry_on: RetryOn
    timeout: Duration
    deadline: Duration
    delay: Duration | datetime
    needs: Sequence[str]
    budget: str
    budgets: Sequence[str]
    quota: str
    quotas: Sequence[str]
    concurrency: tuple[str, int]
    fairness: str
    idempotency_key: str
    dedup_window: Duration
    retention: Duration
    max_replays: int
    max_reclaims: int
    stream: StreamPolicy
    on_suspend_timeout: str
    on_nondeterminism: Literal["park", "fail"]


_KNOWN: Final = frozenset(Options.__annotations__)
_PAIR: Final = 2


def prepared(
    kind: str,
    options: Options,
    namespace: str,
    result_type: Callable[[], Any] = lambda: Any,
    *,
    typed: bool = True,
) -> BoundCall[Any]:
    """A call without a payload, with checked options; a wrong one is refused before anything is
    sent. The policy is text that the engine reads once. A call that is not typed, by the name of
    its kind, states only the options that are given."""
    unknown = sorted(set(options) - _KNOWN)
    if unknown:
        raise ConfigError(f"options.{unknown[0]}: there is no such option{_meant(unknown[0])}")
    own = options.get("namespace", namespace)
    delay_ms, delay_until = _delay(options.get("delay"))
    lane, tags = _checked(options, own)
    submission = Submission(
        kind=kind,
        namespace=own,
        lane=lane if typed or "lane" in options else "",
        priority=options.get("priority"),
        idempotency_key=options.get("idempotency_key", ""),
        tags=tags if tags or (not typed and "tags" in options) else None,
        policy=_policy_text(options, own, typed=typed) or None,
        delay_until=delay_until,
        typed=typed,
    )
    return BoundCall(submission=submission, result_type=result_type, delay_ms=delay_ms)


def _delay(delay: Duration | datetime | None) -> tuple[int, int | None]:
    """A length that begins with the submit, or an instant."""
    if isinstance(delay, datetime):
        return 0, instant_ms(delay, "delay")
    return 0 if delay is None else milliseconds(delay, "delay"), None


def _meant(name: str) -> str:
    near = get_close_matches(name, _KNOWN, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _checked(options: Options, namespace: str) -> tuple[str, dict[str, str]]:
    """Lane and tags as the engine will take them."""
    try:
        check_namespace(namespace)
        return check_lane(options.get("lane", "default"), "lane"), submitted_tags(
            options.get("tags")
        )
    except FlowFabricError as fault:
        raise ConfigError(f"options: {fault.detail}") from fault


def names_in(value: object, option: str) -> tuple[str, ...]:
    """A list of names; a single text, which is a list of letters to Python, is a mistake."""
    return tuple(_listed(value, option))


def _listed(value: object, option: str) -> Iterable[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ConfigError(f"{option}: expected a list of names, got {value!r}")
    return value


# Where a policy has what an option says.
_PLACES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "retries": (("retry_policy", "max_retries"),),
    "backoff": (("retry_policy", "backoff"),),
    "retry_on": (("retry_policy", "retryable_categories"),),
    "timeout": (("timeout_policy", "attempt_timeout_ms"),),
    "deadline": (("timeout_policy", "execution_deadline_ms"),),
    "needs": (("routing_requirements", "required_capabilities"),),
    "budget": (("budget_ids",),),
    "budgets": (("budget_ids",),),
    "quota": (("quota_ids",),),
    "quotas": (("quota_ids",),),
    "concurrency": (("concurrency_key",), ("concurrency_limit",)),
    "fairness": (("fairness_key",),),
    "dedup_window": (("dedup_window_ms",),),
    "retention": (("retention_ms",),),
    "max_replays": (("max_replay_count",),),
    "max_reclaims": (("max_reclaim_count",),),
    "stream": (("stream_policy",),),
    "on_suspend_timeout": (("suspension_policy", "timeout_behavior"),),
    "on_nondeterminism": (("on_nondeterminism",),),
}


def _stated(policy: ExecutionPolicy, options: Options) -> str:
    """The policy with the members of these options alone, those among them that are defaults."""
    members: dict[str, Any] = {}
    for *parts, name in (place for one in options for place in _PLACES.get(one, ())):
        value: Any = policy
        at = members
        for part in parts:
            value = getattr(value, part)
            at = at.setdefault(part, {})
        at[name] = getattr(value, name, None)
    return msgspec.json.encode(members).decode() if members else ""


def _policy_text(options: Options, namespace: str, *, typed: bool) -> str:
    try:
        wanted = ExecutionPolicy(
            retry_policy=_retry(options, typed=typed),
            timeout_policy=_timeouts(options),
            budget_ids=_ids(options, "budget", "budgets"),
            quota_ids=_ids(options, "quota", "quotas"),
            fairness_key=options.get("fairness"),
            routing_requirements=_routing(options, typed=typed),
            suspension_policy=_suspension(options),
            stream_policy=options.get("stream"),
            **_rest(options),
        )
        checked = decode_policy(wanted)
        return freeze(checked) if typed else _stated(wanted, options)
    except ConfigError:
        raise
    except FlowFabricError as fault:
        raise ConfigError(f"options: {fault.detail}") from fault


def _rest(options: Options) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if "concurrency" in options:
        pair: object = options["concurrency"]
        if not isinstance(pair, tuple | list) or len(pair) != _PAIR:
            raise ConfigError(f"options.concurrency: expected (key, limit), got {pair!r}")
        given["concurrency_key"], given["concurrency_limit"] = pair
    for name, member in (
        ("max_replays", "max_replay_count"),
        ("max_reclaims", "max_reclaim_count"),
        ("on_nondeterminism", "on_nondeterminism"),
    ):
        if name in options:
            given[member] = options[name]  # type: ignore[literal-required]
    for name, member in (("dedup_window", "dedup_window_ms"), ("retention", "retention_ms")):
        if name in options:
            given[member] = milliseconds(options[name], name)  # type: ignore[literal-required]
    return given


def _retry(options: Options, *, typed: bool) -> RetryPolicy | None:
    retries = options.get("retries", 0)
    if type(retries) is not int or retries < 0:
        raise ConfigError(f"options.retries: expected 0 or more, got {retries!r}")
    if not retries and typed:
        return None
    backoff = options.get("backoff", ExponentialBackoff())
    if not isinstance(backoff, FixedBackoff | ExponentialBackoff):
        backoff = FixedBackoff(milliseconds(backoff, "backoff"))
    return RetryPolicy(retries, backoff, _categories(options))


def retry_classes(options: Options) -> tuple[type[Exception], ...]:
    """The exceptions after which the worker has an attempt tried again."""
    return tuple(one for one in _retry_on(options) if isinstance(one, type))


def _categories(options: Options) -> tuple[str, ...]:
    """The categories that are tried again. Classes are judged by the worker: their categories must
    not be refused by the engine."""
    given, classes = _retry_on(options), retry_classes(options)
    names = [one for one in given if isinstance(one, str)]
    if names and classes:
        own = (getattr(one, "category", None) for one in classes)
        names += [HANDLER_ERROR, *(one for one in own if isinstance(one, str) and one)]
    return tuple(dict.fromkeys(names))


def _retry_on(options: Options) -> tuple[type[Exception] | str, ...]:
    given = options.get("retry_on", ())
    found = (given,) if isinstance(given, type) else tuple(_listed(given, "options.retry_on"))
    for one in found:
        if not isinstance(one, str) and not _is_exception(one):
            raise ConfigError(
                f"options.retry_on: expected exception classes and category names, got {one!r}"
            )
    return found


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)


def _timeouts(options: Options) -> TimeoutPolicy | None:
    if "timeout" not in options and "deadline" not in options:
        return None
    timeout, deadline = options.get("timeout"), options.get("deadline")
    return TimeoutPolicy(optional_ms(timeout), optional_ms(deadline, "deadline"))


def _routing(options: Options, *, typed: bool) -> RoutingRequirements | None:
    needs = names_in(options.get("needs", ()), "options.needs")
    return RoutingRequirements(needs) if needs or not typed else None


def _suspension(options: Options) -> SuspensionPolicy | None:
    behavior: Any = options.get("on_suspend_timeout")
    return SuspensionPolicy(timeout_behavior=behavior) if behavior else None


def _ids(options: Options, one: str, many: str) -> tuple[str, ...]:
    names = list(names_in(options.get(many, ()), f"options.{many}"))
    if one in options:
        names.insert(0, options[one])  # type: ignore[literal-required]
    return tuple(dict.fromkeys(names))
