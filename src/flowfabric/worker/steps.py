"""Steps: side effects that happen once; their values are kept in the journal."""

import asyncio
import hashlib
import inspect
import random
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

from flowfabric.core.backoff import Backoff
from flowfabric.errors import ConfigError
from flowfabric.worker import codecs
from flowfabric.worker.codecs import Unencodable
from flowfabric.worker.durations import Duration, optional_seconds
from flowfabric.worker.output import counting
from flowfabric.worker.session import JournalKey, Recorded, Session

RESERVED: Final = "ff."
_NAME_BYTES: Final = 1024
_MAX_TEXT: Final = 120
_BACKOFF: Final = Backoff(0.05, 5.0)


class StepPolicy(msgspec.Struct, frozen=True):
    """How often a step is tried again within its attempt, and how long one try may take."""

    retries: int = 0
    timeout: Duration | None = None
    as_: Any = None


class Steps:
    def __init__(self, session: Session) -> None:
        self._session = session

    async def run(
        self, name: str, fn: Callable[..., Any], args: tuple[Any, ...], policy: StepPolicy
    ) -> Any:
        check_name(name)
        session = self._session
        key = session.next_key(name)
        function = getattr(fn, "__qualname__", type(fn).__qualname__)
        call, digest = describe(function.replace("<locals>.", ""), args)
        type_ = policy.as_ if policy.as_ is not None else returns(fn)
        found = session.recorded(key, digest, call)
        if found is None:
            if session.is_lease_over:
                await session.confirm_lease()
            found = await session.start_step(self._perform(fn, args, policy, call))
            found = await session.start_step(session.record(key, digest, found))
        return value_of(found, type_)

    async def _perform(
        self, fn: Callable[..., Any], args: tuple[Any, ...], policy: StepPolicy, call: str
    ) -> Recorded:
        counted = counting()
        value = await _tried(fn, args, policy)
        # The output of a step must be stored before the step counts as done.
        await self._session.under_lease(self._session.output.flush())
        return recorded(call, value, counted[0])


async def _tried(fn: Callable[..., Any], args: tuple[Any, ...], policy: StepPolicy) -> Any:
    seconds = optional_seconds(policy.timeout)
    for failures in range(1, policy.retries + 2):
        try:
            async with asyncio.timeout(seconds):
                return await called(fn, args)
        except Exception:
            if failures > policy.retries:
                raise
            await asyncio.sleep(_BACKOFF.pause_s(failures, random.random()))
    raise ConfigError(f"retries: expected 0 or more, got {policy.retries}")


async def called(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The value of a function; one that blocks runs in a thread."""
    if inspect.iscoroutinefunction(fn):
        return await fn(*args)
    value = await asyncio.to_thread(fn, *args)
    return await value if inspect.isawaitable(value) else value


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
) -> Recorded:
    """What the journal has for the next use of a name, or else what `make` returns."""
    key = session.next_key(name)
    text, digest = describe(call, args)
    found = session.recorded(key, digest, text)
    if found is None:
        found = await session.record(key, digest, recorded(text, await make(key)))
    return found


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
    try:
        hints = inspect.get_annotations(fn, eval_str=True)
    except (NameError, TypeError):
        return Any
    return hints.get("return", Any)
