"""The context: everything durable that a handler does goes through it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

import msgspec

from flowfabric.core.suspensions import ReceivedSignal
from flowfabric.core.upstreams import Upstream
from flowfabric.errors import ConfigError, NotFound
from flowfabric.operations.budgets import Usage
from flowfabric.operations.workers import Claim
from flowfabric.worker import codecs
from flowfabric.worker.children import Call, Callee, Child, Children
from flowfabric.worker.durations import Duration, instant_ms, milliseconds
from flowfabric.worker.output import StreamMode, frame_of
from flowfabric.worker.session import Session
from flowfabric.worker.spending import Reservation, Spending
from flowfabric.worker.steps import StepPolicy, Steps
from flowfabric.worker.waits import Decision, PendingWaitpoint, Signal, Waits, typed

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_log = logging.getLogger("flowfabric.task")
_HOUR: Final = "1h"
_DAY: Final = "1d"


class TaskInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler may know about the work it does."""

    execution_id: str
    kind: str
    lane: str
    namespace: str
    attempt_index: int
    attempt_id: str
    attempt_type: str
    retry_count: int
    tags: Mapping[str, str]
    flow_id: str = ""


def info_of(claim: Claim) -> TaskInfo:
    return TaskInfo(
        execution_id=claim.execution_id,
        kind=claim.execution_kind,
        lane=claim.lane_id,
        namespace=claim.namespace,
        attempt_index=claim.attempt_index,
        attempt_id=claim.attempt_id,
        attempt_type=claim.attempt_type,
        retry_count=claim.retry_count,
        tags=claim.tags,
        flow_id=claim.flow_id,
    )


class Context:
    """Waiting suspends the execution and frees the worker; later the handler is entered again and
    everything recorded is answered from the journal. So: name your steps, and do side effects
    inside them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._steps = Steps(session)
        self._waits = Waits(session)
        self._spending = Spending(session)
        self._children = Children(session)

    # ---- steps and time

    @overload
    async def step(
        self,
        name: str,
        fn: Callable[..., Awaitable[T]],
        *args: Any,
        retries: int = 0,
        timeout: Duration | None = None,
        as_: Any = None,
    ) -> T: ...

    @overload
    async def step(
        self,
        name: str,
        fn: Callable[..., T],
        *args: Any,
        retries: int = 0,
        timeout: Duration | None = None,
        as_: Any = None,
    ) -> T: ...

    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        retries: int = 0,
        timeout: Duration | None = None,
        as_: Any = None,
    ) -> Any:
        """Run `fn` once and keep its value; a kept step is never run again. Functions that block
        run in a thread. `as_` names the value's type where `fn` does not."""
        return await self._steps.run(name, fn, args, StepPolicy(retries, timeout, as_))

    async def sleep(self, duration: Duration) -> None:
        """Continue after this long; the end is fixed by the first call."""
        length = milliseconds(duration)
        await self._waits.sleep(None, length, f"sleep {length} ms")

    async def sleep_until(self, when: datetime | float) -> None:
        """Continue at an instant: a datetime with a zone, or seconds since the epoch."""
        end = instant_ms(when, "when")
        await self._waits.sleep(end, 0, f"sleep until {end}")

    # ---- the outside

    @overload
    async def wait_for(
        self,
        name: str,
        /,
        *,
        timeout: Duration | None = None,
        as_: type[T],
        on: PendingWaitpoint | None = None,
    ) -> Signal[T] | None: ...

    @overload
    async def wait_for(
        self,
        name: str = "",
        /,
        *,
        timeout: Duration | None = None,
        as_: None = None,
        on: PendingWaitpoint | None = None,
    ) -> Signal[Any] | None: ...

    @overload
    async def wait_for(
        self,
        *names: str,
        timeout: Duration | None = None,
        as_: Any = None,
        on: PendingWaitpoint | None = None,
    ) -> list[Signal[Any]] | None: ...

    async def wait_for(
        self,
        *names: str,
        timeout: Duration | None = None,
        as_: Any = None,
        on: PendingWaitpoint | None = None,
    ) -> Signal[Any] | list[Signal[Any]] | None:
        """Suspend until the named signal arrives; several names: all of them; none: any. The
        signal, or the list of them, or None at the timeout."""
        given = tuple(name for name in names if name)
        received = await self._waits.wait_for(given, timeout, on)
        if received is None:
            return None
        signals = typed(received, Any if as_ is None else as_)
        if len(given) > 1:
            return [_named(signals, name) for name in given]
        return signals[-1] if signals else None

    async def waitpoint(self, key: str | None = None, expires: Duration = _DAY) -> PendingWaitpoint:
        """An address and token to hand out before waiting on it; early signals are kept."""
        return await self._waits.waitpoint(key, expires)

    async def approve(
        self, prompt: str, approvers: int = 1, timeout: Duration | None = None
    ) -> Decision:
        """Suspend until that many different people have approved, or one has rejected."""
        return await self._waits.approve(prompt, approvers, timeout)

    async def signals(self) -> tuple[ReceivedSignal, ...]:
        """The signals that ended the last suspension."""
        return await self._waits.signals()

    # ---- budgets

    async def spend(self, budget: str | None = None, **amounts: int) -> Usage:
        """Report what was used. A hard limit raises `BudgetExceeded`: stop."""
        return await self._spending.spend(budget, amounts)

    def reserve(
        self, budget: str | None = None, ttl: Duration = _HOUR, **amounts: int
    ) -> Reservation:
        """Hold amounts for the length of an `async with`; `commit` what was really used."""
        return self._spending.reserve(budget, ttl, amounts)

    # ---- output

    async def stream(
        self,
        payload: object,
        frame_type: str = "event",
        mode: StreamMode = "durable",
        ttl: Duration | None = None,
    ) -> None:
        """Put out a frame: text, bytes or anything encodable."""
        frame = frame_of(payload, frame_type)
        if mode != "durable" or ttl is not None:
            ttl_ms = 0 if ttl is None else milliseconds(ttl, "ttl")
            frame = msgspec.structs.replace(frame, mode=mode, ttl_ms=ttl_ms)
        self._session.check()
        await self._session.under_lease(self._session.output.put(frame))

    async def summary(self, patch: Mapping[str, Any]) -> None:
        """Merge a JSON patch into the attempt's rolling document."""
        frame = frame_of(patch, "summary")
        self._session.check()
        await self._session.under_lease(
            self._session.output.put(msgspec.structs.replace(frame, mode="summary"))
        )

    def progress(self, pct: int | None = None, message: str | None = None) -> None:
        """Reported with the next renewal of the lease."""
        if pct is not None and not 0 <= pct <= 100:
            raise ConfigError(f"pct: expected 0..100, got {pct}")
        self._session.check()
        self._session.progress = (pct, message)

    # ---- children and upstreams

    async def submit(self, task: Callee[P, R], *args: P.args, **kwargs: P.kwargs) -> Child[R]:
        """Start a child; a repeat finds the same one."""
        return await self._children.submit(task.bind(*args, **kwargs))

    def call(self, task: Callee[P, R], *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A child's result, or its failure; the parent frees its worker until then."""
        return Call(self._children, task.bind(*args, **kwargs))

    async def gather(self, *calls: Call[R]) -> list[R]:
        """The results of several children that run at the same time."""
        return await self._children.gather(calls)

    async def upstreams(self) -> tuple[Upstream, ...]:
        """Who feeds this member of a flow, and how they ended."""
        self._session.check()
        own = self._session.claim.execution_id
        return (await self._session.calls.upstreams(own, results=True)).upstreams

    @overload
    async def upstream(self, name: str, as_: type[T]) -> T: ...

    @overload
    async def upstream(self, name: str, as_: None = None) -> Any: ...

    async def upstream(self, name: str, as_: Any = None) -> Any:
        """The result of the upstream input of that name."""
        found = chosen(await self.upstreams(), name)
        if found is None:
            raise NotFound(f"upstream: no input named {name!r} has a result")
        body = found.result
        if found.result_deferred:
            (ended,) = await self._session.calls.ended([found.execution_id])
            body = ended.result if ended else None
        return codecs.decode(body, found.result_encoding, Any if as_ is None else as_)

    # ---- about the work

    @property
    def lease_healthy(self) -> bool:
        """False once the lease is lost; check it before an effect that cannot be undone."""
        session = self._session
        return not session.is_released and not session.is_overdue

    @property
    def lease_lost(self) -> asyncio.Event:
        """Set when the lease is lost: `await ctx.lease_lost.wait()`."""
        return self._session.lost

    @property
    def info(self) -> TaskInfo:
        return info_of(self._session.claim)

    @property
    def task(self) -> Claim:
        return self._session.claim

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        claim = self._session.claim
        return logging.LoggerAdapter(
            _log,
            {
                "execution_id": claim.execution_id,
                "kind": claim.execution_kind,
                "attempt_index": claim.attempt_index,
            },
        )


class SyncContext:
    """The context of a function that runs in a thread: the same calls, each of which blocks."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._context, name)
        if not callable(value):
            return value

        def blocking(*args: Any, **kwargs: Any) -> Any:
            if _is_inside(self._loop):
                raise ConfigError(f"{name}: blocks; a function that awaits takes a Context")

            async def run() -> Any:
                answer = value(*args, **kwargs)
                return await answer if hasattr(answer, "__await__") else answer

            return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

        return blocking


def _is_inside(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this very code is run by the loop, and would wait for itself."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def chosen(upstreams: tuple[Upstream, ...], name: str) -> Upstream | None:
    """Of several inputs of one name the one that was satisfied first."""
    named = [one for one in upstreams if one.data_ref == name and one.satisfied_at]
    return min(named, key=lambda one: (one.satisfied_at, one.edge_id), default=None)


def _named(signals: list[Signal[Any]], name: str) -> Signal[Any]:
    return cast(Signal[Any], next((one for one in signals if one.name == name), None))
