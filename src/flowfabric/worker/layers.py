"""Layers: wrap the calls of a program so that something happens around each of them.

A layer is per process and never carries correctness; of
several the one applied last is outermost.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Final, Literal, Protocol, TypeVar, cast

from flowfabric.errors import (
    BugError,
    ConfigError,
    ConflictError,
    ContentionError,
    FlowFabricError,
    NotFoundError,
    ResourceExhausted,
    ServiceError,
    StateError,
    StoreTimeout,
    TimedOut,
    TransportError,
    TransportFault,
    ValidationError,
)
from flowfabric.telemetry.traces import Traces

P = TypeVar("P")

_log = logging.getLogger("flowfabric.calls")


class Hook(Protocol):
    """What a layer does around a call. `before` may refuse it; `after` is called at every end."""

    def before(self, method: str) -> FlowFabricError | None: ...

    def after(self, method: str, elapsed_s: float, fault: BaseException | None) -> None: ...


def layered(calls: P, *hooks: Hook) -> P:
    """The same calls with hooks around them; the last hook is outermost."""
    wrapped: Any = calls
    for hook in hooks:
        wrapped = _Layer(wrapped, hook)
    return cast(P, wrapped)


class _Layer:
    """Delegates everything; calls that are awaited pass the hook."""

    def __init__(self, inner: Any, hook: Hook) -> None:
        self._inner = inner
        self._hook = hook

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        is_call = inspect.iscoroutinefunction(found)
        if not is_call or name == "close":
            return found
        call = _around(name, found, self._hook)
        setattr(self, name, call)
        return call


def _around(method: str, call: Callable[..., Any], hook: Hook) -> Callable[..., Any]:
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        refusal = hook.before(method)
        if refusal is not None:
            hook.after(method, 0.0, refusal)
            raise refusal
        began = time.perf_counter()
        try:
            answer = await call(*args, **kwargs)
        except BaseException as fault:
            hook.after(method, time.perf_counter() - began, fault)
            raise
        hook.after(method, time.perf_counter() - began, None)
        return answer

    return guarded


# ---- tracing


# The spans around the calls this task is in, innermost last.
_spans: ContextVar[tuple[AbstractContextManager[Any], ...]] = ContextVar("call_spans", default=())


class Tracing:
    """A span around each call when tracing is on, and a log entry with its duration and
    success."""

    def __init__(self, level: int = logging.INFO, logger: logging.Logger = _log) -> None:
        self._level = level
        self._logger = logger
        self._traces = Traces()

    def before(self, method: str) -> None:
        if self._traces.is_on:
            span = self._traces.span("ff_sdk.backend", None, {"method": method})
            span.__enter__()
            _spans.set((*_spans.get(), span))

    def after(self, method: str, elapsed_s: float, fault: BaseException | None) -> None:
        if self._traces.is_on:
            *outer, span = _spans.get()
            _spans.set(tuple(outer))
            span.__exit__(type(fault) if fault else None, fault, None)
        self._logger.log(
            self._level,
            "engine_backend.call method=%s elapsed_us=%d ok=%s",
            method,
            elapsed_s * 1e6,
            fault is None,
        )


# ---- rate limit


class _Bucket:
    def __init__(self, per_second: float) -> None:
        self._rate = per_second
        self._tokens = per_second
        self._at = time.monotonic()

    def take(self) -> float:
        """0 when there was a token, else the seconds until there is one."""
        now = time.monotonic()
        self._tokens = min(self._rate, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self._rate


class RateLimit:
    """A token bucket for all calls, or one per key that `classify` gives a method; a key without
    a rate of its own takes the default, and without a default it is let through."""

    def __init__(
        self,
        per_second: float | None = None,
        *,
        classify: Callable[[str], str] | None = None,
        rates: Mapping[str, float] | None = None,
        exempt: Iterable[str] = ("renew",),
    ) -> None:
        for rate in (*(rates or {}).values(), *([] if per_second is None else [per_second])):
            if rate < 1:
                raise ConfigError(f"rate limit.per_second: expected 1 or more, got {rate}")
        self._classify = classify
        self._default = per_second
        self._buckets = {key: _Bucket(rate) for key, rate in (rates or {}).items()}
        self._exempt = frozenset(exempt)

    def before(self, method: str) -> FlowFabricError | None:
        if method in self._exempt:
            return None
        key = self._classify(method) if self._classify else "all"
        bucket = self._buckets.get(key)
        if bucket is None and self._default is not None:
            bucket = self._buckets[key] = _Bucket(self._default)
        wait = bucket.take() if bucket else 0.0
        if not wait:
            return None
        return ResourceExhausted(
            f"{method}: rate limit {key!r} reached", retry_after_ms=max(1, round(wait * 1000))
        )

    def after(self, method: str, elapsed_s: float, fault: BaseException | None) -> None:
        """Nothing to learn from a call."""


# ---- metrics

CallOutcome = Literal[
    "ok",
    "not_found",
    "validation",
    "contention",
    "conflict",
    "state",
    "bug",
    "transport",
    "unavailable",
    "unknown",
]
_OUTCOMES: Final[tuple[tuple[type[FlowFabricError], CallOutcome], ...]] = (
    (NotFoundError, "not_found"),
    (ValidationError, "validation"),
    (ContentionError, "contention"),
    (ConflictError, "conflict"),
    (StateError, "state"),
    (BugError, "bug"),
    (TransportError, "transport"),
    (ServiceError, "unavailable"),
)


def call_outcome(fault: BaseException | None) -> CallOutcome:
    if fault is None:
        return "ok"
    return next((word for family, word in _OUTCOMES if isinstance(fault, family)), "unknown")


class Metrics:
    """Reports every call to a sink, if there is one."""

    def __init__(
        self, record_call: Callable[[str, float, CallOutcome], None] | None = None
    ) -> None:
        self._record = record_call

    def before(self, method: str) -> None:
        return None

    def after(self, method: str, elapsed_s: float, fault: BaseException | None) -> None:
        if self._record is not None:
            self._record(method, elapsed_s, call_outcome(fault))


# ---- circuit breaker


# Set within the trial call: others may end while it is in flight.
_trial: ContextVar[object] = ContextVar("circuit_trial", default=None)


class CircuitOpen(TransportFault):
    """The breaker refuses calls for a while; never counted as a fault itself."""


class CircuitBreaker:
    """Opens after some transport faults in a row; after a pause exactly one trial call passes."""

    def __init__(
        self,
        failures: int = 5,
        open_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = failures
        self._open_s = open_s
        self._clock = clock
        self._count = 0
        self._opened_at: float | None = None
        self._is_trying = False

    def before(self, method: str) -> FlowFabricError | None:
        if self._opened_at is None:
            return None
        if self._is_trying or self._clock() - self._opened_at < self._open_s:
            return CircuitOpen("circuit open")
        self._is_trying = True
        _trial.set(self)
        return None

    def after(self, method: str, elapsed_s: float, fault: BaseException | None) -> None:
        if isinstance(fault, CircuitOpen):
            return
        was_trial = _trial.get() is self
        if was_trial:
            self._is_trying = False
            _trial.set(None)
        if isinstance(fault, asyncio.CancelledError):
            return
        if _is_transport(fault):
            self._count += 1
            if was_trial or self._count >= self._most:
                self._opened_at = self._clock()
        elif was_trial or (fault is None and self._opened_at is None):
            self._count, self._opened_at = 0, None


def _is_transport(fault: BaseException | None) -> bool:
    """Whether the fault, or one that caused it, is of the transport."""
    while fault is not None:
        if isinstance(fault, TransportError | StoreTimeout | TimedOut | OSError | TimeoutError):
            return True
        fault = fault.__cause__
    return False
