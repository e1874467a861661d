"""The context: everything durable that a handler does goes through it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import (
    Any,
    Final,
    NoReturn,
    ParamSpec,
    TypeVar,
    TypeVarTuple,
    Unpack,
    cast,
    get_args,
    overload,
)
from uuid import UUID

import msgspec

from flowfabric.core.graph import Upstream
from flowfabric.core.suspensions import ReceivedSignal
from flowfabric.errors import ConfigError, NotFound
from flowfabric.operations.budgets import Usage
from flowfabric.operations.executions import OnParentEnd
from flowfabric.operations.workers import Claim
from flowfabric.worker import codecs
from flowfabric.worker.calls import WorkerCalls
from flowfabric.worker.children import (
    BoundCall,
    Call,
    Callee,
    Child,
    Children,
    ChildTerms,
)
from flowfabric.worker.durations import Duration, instant_ms, milliseconds, optional_ms
from flowfabric.worker.helpers import Helpers, TaskLog, refuse_in_step
from flowfabric.worker.output import StreamMode, frame_of
from flowfabric.worker.parking import WaitingCall
from flowfabric.worker.session import Session
from flowfabric.worker.spending import Reservation, Spending
from flowfabric.worker.steps import StepOptions, StepPolicy, run_step
from flowfabric.worker.waits import Decision, PendingWaitpoint, Signal, Waits, typed

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

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
        self._waits = Waits(session)
        self._spending = Spending(session)
        self._children = Children(session)
        self._helpers = Helpers(session)

    # ---- steps and time

    @overload
    async def step(
        self,
        name: str,
        fn: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        **options: Unpack[StepOptions],
    ) -> T: ...

    @overload
    async def step(
        self,
        name: str,
        fn: Callable[[*Ts], T],
        *args: *Ts,
        **options: Unpack[StepOptions],
    ) -> T: ...

    async def step(
        self,
        name: str,
        fn: Callable[[*Ts], Any],
        *args: *Ts,
        **options: Unpack[StepOptions],
    ) -> Any:
        """Run `fn` once and keep its value; a kept step is never run again. So is a failure that
        you catch: once the handler goes on with something else, the step fails the same way each
        time. Functions that block run in a thread. `as_` names the value's type where `fn` does
        not."""
        return await run_step(self._session, name, fn, args, StepPolicy(**options))

    def sleep(self, duration: Duration) -> WaitingCall[None]:
        """Continue after this long; the end is fixed by the first call."""
        length = milliseconds(duration)
        return self._waits.sleep(None, length, f"sleep {length} ms")

    def sleep_until(self, when: datetime | float) -> WaitingCall[None]:
        """Continue at an instant: a datetime with a zone, or seconds since the epoch."""
        end = instant_ms(when, "when")
        return self._waits.sleep(end, 0, f"sleep until {end}")

    def now(self) -> datetime:
        """The store's clock, in UTC; recorded, so that it is the same instant each time."""
        return self._helpers.now()

    def uuid(self) -> UUID:
        """A random id that is the same each time."""
        return self._helpers.uuid()

    def random(self) -> float:
        """A number from 0 up to 1 that is the same each time."""
        return self._helpers.random()

    def patched(self, name: str) -> bool:
        """Whether to take the changed code: false for an execution that had passed this place
        before the code was changed. Answered once per execution and recorded."""
        return self._helpers.patched(name)

    async def restart(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Begin the task anew with these arguments, as the same execution with an empty journal:
        for handlers that go on for long. It waits for the steps under way; live children end,
        unless they were submitted with `on_parent_end="leave"`."""
        refuse_in_step("restart")
        raise self._session.restart(args, kwargs)

    # ---- the outside

    @overload
    def wait_for(
        self,
        name: str,
        /,
        *,
        timeout: Duration | None = None,
        as_: type[T],
        on: PendingWaitpoint | None = None,
    ) -> WaitingCall[Signal[T] | None]: ...

    @overload
    def wait_for(
        self,
        name: str = "",
        /,
        *,
        timeout: Duration | None = None,
        as_: None = None,
        on: PendingWaitpoint | None = None,
    ) -> WaitingCall[Signal[Any] | None]: ...

    @overload
    def wait_for(
        self,
        *names: str,
        timeout: Duration | None = None,
        as_: Any = None,
        on: PendingWaitpoint | None = None,
    ) -> WaitingCall[list[Signal[Any]] | None]: ...

    def wait_for(
        self,
        *names: str,
        timeout: Duration | None = None,
        as_: Any = None,
        on: PendingWaitpoint | None = None,
    ) -> WaitingCall[Any]:
        """Suspend until the named signal arrives; several names: all of them; none: any. The
        signal, or the list of them, or None at the timeout."""
        given = tuple(name for name in names if name)
        type_ = Any if as_ is None else as_

        def finish(received: tuple[ReceivedSignal, ...] | None) -> object:
            if received is None:
                return None
            signals = typed(received, type_)
            if len(given) > 1:
                return [_named(signals, name) for name in given]
            return signals[-1] if signals else None

        return self._waits.wait_for(given, timeout, on, finish)

    @overload
    async def receive(self, name: str = "", /, *, as_: type[T]) -> Signal[T] | None: ...

    @overload
    async def receive(self, name: str = "", /, *, as_: None = None) -> Signal[Any] | None: ...

    async def receive(self, name: str = "", /, *, as_: Any = None) -> Signal[Any] | None:
        """Take the oldest signal of that name from the mailbox, or the oldest of all, without
        waiting; None when there is none."""
        found = await self._waits.receive(name)
        return typed((found,), Any if as_ is None else as_)[0] if found else None

    async def waitpoint(self, key: str | None = None, expires: Duration = _DAY) -> PendingWaitpoint:
        """An address and token to hand out before waiting on it; early signals are kept."""
        return await self._waits.waitpoint(key, expires)

    def approve(
        self, prompt: str, approvers: int = 1, timeout: Duration | None = None
    ) -> WaitingCall[Decision]:
        """Suspend until that many different people have approved, or one has rejected."""
        return self._waits.approve(prompt, approvers, timeout)

    def race(self, **members: Awaitable[Any]) -> WaitingCall[tuple[str, Any]]:
        """The name and the value of the waiting call that is over first, or its failure; the others
        are given up: children are cancelled, and signals stay in the mailbox."""
        return self._waits.race(members)

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
        await self._session.begin_effect()
        await self._session.under_lease(self._session.output.put(frame))

    async def summary(self, patch: Mapping[str, Any]) -> None:
        """Merge a JSON patch into the attempt's rolling document."""
        frame = frame_of(patch, "summary")
        self._session.check()
        await self._session.begin_effect()
        await self._session.under_lease(
            self._session.output.put(msgspec.structs.replace(frame, mode="summary"))
        )

    def progress(self, pct: int | None = None, message: str | None = None) -> None:
        """Report how far the work is. What is left out stays as it was told before; it is written
        at most once a second, and what is left before the attempt ends or pauses."""
        self._session.check()
        self._session.progress.report(pct, message)

    # ---- children and upstreams

    @overload
    async def submit(self, task: Callee[P, R], *args: P.args, **kwargs: P.kwargs) -> Child[R]: ...

    @overload
    async def submit(
        self, task: Callee[..., R], *args: Any, on_parent_end: OnParentEnd, **kwargs: Any
    ) -> Child[R]: ...

    async def submit(self, task: Callee[..., R], *args: Any, **kwargs: Any) -> Child[R]:
        """Start a child; a repeat finds the same one. It is cancelled when this execution ends
        otherwise than completed, unless `on_parent_end="leave"`. An option whose name is a
        parameter of the task is an argument."""
        on_parent_end = _option(task, kwargs, "on_parent_end", "cancel")
        if on_parent_end not in get_args(OnParentEnd):
            raise ConfigError(f"on_parent_end: expected 'cancel' or 'leave', got {on_parent_end!r}")
        bound = task.bind(*args, **kwargs)
        return await self._children.submit(bound, ChildTerms(on_parent_end))

    @overload
    def call(self, task: Callee[P, R], *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...

    @overload
    def call(
        self, task: Callee[..., R], *args: Any, timeout: Duration | None, **kwargs: Any
    ) -> Call[R]: ...

    def call(self, task: Callee[..., R], *args: Any, **kwargs: Any) -> Call[R]:
        """A child's result, or its failure; the parent frees its worker until then. At the
        `timeout` the child is ended, and `CallTimeout` is raised."""
        timeout_ms = optional_ms(_option(task, kwargs, "timeout", None))
        terms = ChildTerms(timeout_ms=timeout_ms)
        return Call(self._children, task.bind(*args, **kwargs), terms)

    async def gather(self, *items: Awaitable[R] | BoundCall[R]) -> list[R]:
        """The results of calls of this context that run at the same time, in order: steps, waits,
        children, and children bound by `task.bind(...)`. The first failure in order is raised when
        all have ended."""
        return await self._children.gather(items)

    async def upstreams(self) -> tuple[Upstream, ...]:
        """Who feeds this member of a flow, and how they ended."""
        self._session.check()
        own = self._session.claim.execution_id
        asked = self._session.calls.upstreams(own, results=True)
        return (await self._session.under_lease(asked)).upstreams

    @overload
    async def upstream(self, name: str, as_: type[T]) -> T: ...

    @overload
    async def upstream(self, name: str, as_: None = None) -> Any: ...

    async def upstream(self, name: str, as_: Any = None) -> Any:
        """The result of the upstream input of that name."""
        found = chosen(await self.upstreams(), name)
        if found is None:
            raise NotFound(f"upstream: no input named {name!r} has a result")
        body = await upstream_result(found, self._session.calls)
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
    def cancelled(self) -> bool:
        """True once the execution was cancelled or its lease was taken: a function that blocks
        looks at it from time to time, and returns. What it returns is ignored then."""
        return self._session.is_released or self._session.is_cancelled

    @property
    def info(self) -> TaskInfo:
        return info_of(self._session.claim)

    @property
    def task(self) -> Claim:
        return self._session.claim

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """Carries execution id, kind and attempt, and is silent while the handler is on its way
        through what it did before."""
        return TaskLog(self._session)


class SyncContext:
    """The context of a function that runs in a thread: the same calls, each of which blocks."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop

    @overload
    def step(
        self,
        name: str,
        fn: Callable[[*Ts], Awaitable[T]],
        *args: *Ts,
        **options: Unpack[StepOptions],
    ) -> T: ...

    @overload
    def step(
        self,
        name: str,
        fn: Callable[[*Ts], T],
        *args: *Ts,
        **options: Unpack[StepOptions],
    ) -> T: ...

    def step(
        self,
        name: str,
        fn: Callable[[*Ts], Any],
        *args: *Ts,
        **options: Unpack[StepOptions],
    ) -> Any:
        """Run `fn` once and keep its value, as `Context.step` does."""
        return self.__getattr__("step")(name, fn, *args, **options)

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


def _option(task: Callee[..., Any], kwargs: dict[str, Any], name: str, default: Any) -> Any:
    return kwargs.pop(name, default) if not task.takes(name) else default


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


async def upstream_result(upstream: Upstream, calls: WorkerCalls) -> bytes | None:
    """The result of an upstream member, which may have been too large to come with the claim."""
    if not upstream.result_deferred:
        return upstream.result
    (ended,) = await calls.ended([upstream.execution_id])
    return ended.result if ended else None


def _named(signals: list[Signal[Any]], name: str) -> Signal[Any]:
    """The oldest of that name, which leaves the list: a name may be waited for twice."""
    found = next((one for one in signals if one.name == name), None)
    if found is not None:
        signals.remove(found)
    return cast(Signal[Any], found)
