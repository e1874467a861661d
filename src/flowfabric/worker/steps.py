"""Steps: side effects that happen once; their values are kept in the journal."""

import asyncio
import hashlib
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from contextvars import copy_context
from functools import partial
from types import FunctionType
from typing import Any, Final, TypedDict
from weakref import WeakKeyDictionary

import msgspec

from flowfabric.core.journal import RESERVED
from flowfabric.core.policy import ExponentialBackoff, FixedBackoff
from flowfabric.core.retry import delay_ms
from flowfabric.errors import ConfigError, StepTimeout
from flowfabric.worker import codecs
from flowfabric.worker.codecs import Unencodable
from flowfabric.worker.durations import Duration, milliseconds, optional_seconds
from flowfabric.worker.failures import (
    FailureRecord,
    cancelled_record,
    record_of,
    retryable_of,
)
from flowfabric.worker.output import counting
from flowfabric.worker.session import JournalKey, Recorded, Session
from flowfabric.worker.spans import step_span

_log = logging.getLogger("flowfabric.worker")

# With the prefix of a failure it is still a name that the journal takes.
_NAME_BYTES: Final = 1000
_MAX_TEXT: Final = 120
# The return types of functions that write them as text.
_returned: Final = WeakKeyDictionary[FunctionType, Any]()
_BACKOFF: Final = ExponentialBackoff(50, 5_000, 2.0, True)


class StepOptions(TypedDict, total=False):
    """Options of a step as keywords."""

    retries: int
    backoff: FixedBackoff | ExponentialBackoff | Duration
    retry_on: type[Exception] | tuple[type[Exception], ...]
    timeout: Duration | None
    as_: Any


class StepPolicy(msgspec.Struct, frozen=True):
    """How often a step is tried again within its attempt, after which exceptions and when, and how
    long one try may take."""

    retries: int = 0
    backoff: FixedBackoff | ExponentialBackoff | Duration = _BACKOFF
    retry_on: type[Exception] | tuple[type[Exception], ...] = Exception
    timeout: Duration | None = None
    as_: Any = None

    def pause_s(self, failures: int) -> float:
        """The pause before another try."""
        if isinstance(self.backoff, FixedBackoff | ExponentialBackoff):
            return delay_ms(self.backoff, failures - 1, random.random()) / 1000
        return milliseconds(self.backoff, "backoff") / 1000


class _StepRun:
    """One run of a step: how often it was tried and how many frames it put out."""

    __slots__ = ("frames", "threads", "tries")

    def __init__(self, threads: Executor | None) -> None:
        self.threads = threads
        self.tries = 0
        self.frames = [0]


async def run_step(
    session: Session, name: str, fn: Callable[..., Any], args: tuple[Any, ...], policy: StepPolicy
) -> Any:
    check_name(name)
    key = session.next_key(name)
    function = getattr(fn, "__qualname__", type(fn).__qualname__)
    call, digest = describe(function.replace("<locals>.", ""), args)
    type_ = policy.as_ if policy.as_ is not None else returns(fn)
    found = session.recorded(key, digest, call)
    if found is None:
        await session.begin_effect()
        if session.is_lease_over:
            await session.confirm_lease()
        run = _StepRun(session.threads)

        async def perform() -> Recorded:
            run.frames = counting()
            if session.on_step is not None:
                session.on_step(session.claim, key, args)
            with step_span(session, key.name, key.seq):
                value = await _tried(fn, args, policy, call, run)
            # The output of a step must be stored before the step counts as done.
            if session.is_putting_out:
                await session.under_lease(session.output.flush())
            return await session.record(key, digest, recorded(call, value, run.frames[0]))

        try:
            found = await session.start_step(perform())
        except (Exception, asyncio.CancelledError) as fault:
            record = _failure(session, fault, call, run)
            if record is None:
                raise
            raise session.step_failures.keep(key.name, key.seq, digest, record) from fault
    return value_of(found, type_)


def _failure(
    session: Session, fault: BaseException, call: str, run: _StepRun
) -> FailureRecord | None:
    """How a step failed; None for an end that is not its own."""
    if isinstance(fault, asyncio.CancelledError):
        is_foreign = session.is_cancelled or session.is_released
        return None if is_foreign else cancelled_record(call, run.frames[0])
    if isinstance(fault, Exception):
        return record_of(fault, call, run.tries, run.frames[0])
    return None


async def _tried(
    fn: Callable[..., Any], args: tuple[Any, ...], policy: StepPolicy, call: str, run: _StepRun
) -> Any:
    seconds = optional_seconds(policy.timeout)
    if policy.retries < 0:
        raise ConfigError(f"retries: expected 0 or more, got {policy.retries}")
    while True:
        run.tries += 1
        try:
            return await _timed(fn, args, seconds, call, run.threads)
        except Exception as fault:
            is_over = run.tries > policy.retries or not isinstance(fault, policy.retry_on)
            if is_over or retryable_of(fault) is False:
                raise
            await asyncio.sleep(policy.pause_s(run.tries))


async def _timed(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    seconds: float | None,
    call: str,
    threads: Executor | None,
) -> Any:
    if seconds is None:
        return await called(fn, args, call, threads)
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await called(fn, args, call, threads)
    except TimeoutError as fault:
        if not limit.expired():
            raise
        raise StepTimeout(f"{call} took longer than {seconds:g} s") from fault


async def called(
    fn: Callable[..., Any], args: tuple[Any, ...], call: str, threads: Executor | None
) -> Any:
    """The value of a function; one that blocks runs in a thread, which cannot be cancelled."""
    if inspect.iscoroutinefunction(fn):
        return await fn(*args)
    running = asyncio.get_running_loop().run_in_executor(threads, copy_context().run, fn, *args)
    try:
        value = await asyncio.shield(running)
    except asyncio.CancelledError:
        running.add_done_callback(partial(_drop, call))
        raise
    return await value if inspect.isawaitable(value) else value


def _drop(call: str, running: "asyncio.Future[Any]") -> None:
    """The outcome of a function that ran on in its thread after it was given up."""
    if not running.cancelled():
        outcome = running.exception() or "a value"
        _log.warning("%s ended after it was given up; dropped: %r", call, outcome)


def check_name(name: str) -> None:
    if not isinstance(name, str) or not name or len(name.encode()) > _NAME_BYTES:
        raise ConfigError(f"name: expected 1..{_NAME_BYTES} bytes of text, got {name!r}")
    if name.startswith(RESERVED):
        raise ConfigError(f"name: names that begin with {RESERVED} are reserved, got {name!r}")


async def journaled(
    session: Session,
    name: str,
    call: str,
    args: tuple[Any, ...],
    make: Callable[[JournalKey], Awaitable[object]],
    may_wait: Callable[[], bool] = lambda: False,
) -> Recorded:
    """What the journal has for the next use of a name, or else what `make` returns; where that may
    wait, it is recorded before the next effect begins, or with the end of the attempt."""
    key = session.next_key(name)
    text, digest = describe(call, args)
    found = session.recorded(key, digest, text)
    if found is None:
        await session.begin_effect()
        with kept_failures(session, key, digest, text):
            made = recorded(text, await make(key))
        if may_wait():
            session.record_later(key, digest, made)
            return made
        found = await session.record(key, digest, made)
    return found


@contextmanager
def kept_failures(session: Session, key: JournalKey, digest: str, call: str) -> Iterator[None]:
    """What fails within is an outcome of the call, and so the same each time."""
    try:
        yield
    except Exception as fault:
        record = record_of(fault, call)
        raise session.step_failures.keep(key.name, key.seq, digest, record) from fault


def describe(name: str, args: tuple[Any, ...]) -> tuple[str, str]:
    """A call as text for people, and its digest for comparison."""
    texts = [_text(one) for one in args]
    digest = hashlib.sha256("\0".join([name, *texts]).encode()).hexdigest()[:32]
    text = f"{name}({', '.join(texts)})"
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…", digest


def _text(value: object) -> str:
    """An argument as text, the same in every process; the type of one that cannot be encoded."""
    try:
        return codecs.to_json(value).decode()
    except Unencodable:
        return f"<{type(value).__qualname__}>"


def recorded(call: str, value: object, frames: int = 0) -> Recorded:
    try:
        body = msgspec.Raw(codecs.to_json(value))
    except Unencodable as fault:
        raise Unencodable(f"{call}: {fault}") from fault
    return Recorded(call, body, frames, isinstance(value, bytes | bytearray | memoryview))


def value_of(found: Recorded, type_: Any) -> Any:
    """The recorded value, the same whether it was made just now or long ago."""
    return codecs.from_json(bytes(found.value), bytes if found.is_bytes else type_)


def returns(fn: Callable[..., Any]) -> Any:
    """The annotated return type of a function, or Any."""
    found = getattr(fn, "__annotations__", {}).get("return", Any)
    if not isinstance(found, str):
        return found
    own = getattr(fn, "__func__", fn)
    if not isinstance(own, FunctionType):
        return _evaluated(own)
    # Costs as much as all the rest of a step, so it is done once for each function.
    if own not in _returned:
        type_ = _evaluated(own)
        if type_ is Any:
            # A name may be defined later.
            return Any
        _returned[own] = type_
    return _returned[own]


def _evaluated(fn: Callable[..., Any]) -> Any:
    try:
        return inspect.get_annotations(fn, eval_str=True).get("return", Any)
    except (NameError, TypeError):
        return Any
