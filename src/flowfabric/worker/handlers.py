"""Handlers: which function runs which kind of work, and what each of its parameters is given."""

import asyncio
import inspect
from collections import ChainMap
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import Executor
from contextlib import AsyncExitStack, suppress
from contextvars import copy_context
from functools import cached_property, partial
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from flowfabric.errors import ConfigError
from flowfabric.operations.workers import Claim
from flowfabric.worker import codecs
from flowfabric.worker.calls import WorkerCalls
from flowfabric.worker.children import BoundCall
from flowfabric.worker.codecs import REFERRING
from flowfabric.worker.context import (
    Context,
    SyncContext,
    TaskInfo,
    chosen,
    info_of,
    upstream_result,
)
from flowfabric.worker.resources import Resources
from flowfabric.worker.session import Session
from flowfabric.worker.signatures import Signature

T = TypeVar("T")

_Source = Literal["payload", "bytes", "data"]
# The handler of this name runs what no other one does.
EVERY_KIND: Final = "*"
_CONTEXTS: Final = (Context, SyncContext)


class _From(msgspec.Struct, frozen=True):
    """Marks where a parameter's value comes from."""

    source: _Source


Payload = Annotated[T, _From("payload")]
"""A parameter that is given the decoded payload."""
PayloadBytes = Annotated[bytes, _From("bytes")]
"""A parameter that is given the payload as undecoded bytes."""
Data = Annotated[T, _From("data")]
"""A parameter that is given the worker's resource of that type."""


class HandlerEnvironment(msgspec.Struct, frozen=True):
    """What a worker gives to its handlers."""

    calls: WorkerCalls
    resources: Resources
    threads: Executor


class Handler:
    """A function that runs one kind of work."""

    # The exceptions that are tried again; all of them if none is named.
    retry_on: tuple[type[Exception], ...] = ()

    def __init__(self, kind: str, function: Callable[..., Any]) -> None:
        self.kind = kind
        self.function = function
        # Decorators often hide that what they wrap is a coroutine function.
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(function))

    async def call(self, session: Session, environment: HandlerEnvironment) -> Any:
        """Resolve the parameters, then run the body."""
        raise NotImplementedError

    async def _run(
        self, environment: HandlerEnvironment, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if self.is_async:
            return await self.function(*args, **kwargs)
        return await in_thread(environment.threads, partial(self.function, *args, **kwargs))

    def _context(self, session: Session) -> Context | SyncContext:
        context = Context(session)
        if self.is_async:
            return context
        return SyncContext(context, asyncio.get_running_loop())


class Handlers:
    """Which function runs which kind. A program may add more while workers run."""

    def __init__(self) -> None:
        self._by_kind: MutableMapping[str, Handler] = {}
        self._watchers: list[Callable[[], object]] = []

    def extended(self) -> "Handlers":
        """These and more: what is added to the answer is not added here."""
        more = Handlers()
        more._by_kind = ChainMap({}, self._by_kind)
        more._watchers = self._watchers
        return more

    def add(self, *handlers: Handler) -> None:
        for handler in handlers:
            if handler.kind in self._by_kind:
                raise ConfigError(f"task.{handler.kind}: the name is taken on this fabric")
        self._by_kind.update((handler.kind, handler) for handler in handlers)
        for changed in list(self._watchers):
            changed()

    def of(self, kind: str) -> Handler | None:
        return self._by_kind.get(kind) or self._by_kind.get(EVERY_KIND)

    @property
    def names(self) -> tuple[str, ...]:
        """Their kinds in order, as they were declared."""
        return tuple(sorted(self._by_kind))

    @property
    def kinds(self) -> tuple[str, ...] | None:
        """What they run; None when there is a handler for every kind."""
        return None if EVERY_KIND in self._by_kind else self.names

    @property
    def tasks(self) -> list["TaskHandler"]:
        """The tasks among them, by kind."""
        found = (self._by_kind[name] for name in self.names)
        return [one for one in found if isinstance(one, TaskHandler)]

    def watch(self, changed: Callable[[], object]) -> Callable[[], None]:
        """Call it after every change, until the answer is called."""
        self._watchers.append(changed)
        return partial(self._watchers.remove, changed)


class TaskHandler(Handler):
    """A task: its first parameter may be the context, all others come from the payload."""

    def __init__(self, kind: str, function: Callable[..., Any]) -> None:
        super().__init__(kind, function)
        _check_declaration(kind, function, is_async=self.is_async)
        self.wants_context = takes_context(function)
        self.signature = Signature(function, provided=int(self.wants_context))
        # A call without arguments, with the options of the declaration.
        self.template: Callable[[], BoundCall[Any]] | None = None

    async def call(self, session: Session, environment: HandlerEnvironment) -> Any:
        claim = session.claim
        body = await payload_of(claim, environment.calls)
        upstreams = None
        if claim.payload_encoding == REFERRING:
            upstreams = await _upstream_values(claim, environment.calls)
        args, kwargs = self.signature.decode(body, claim.payload_encoding, upstreams)
        if self.wants_context:
            session.encode_input = self.signature.encode
            await session.open()
            args.insert(0, self._context(session))
        return await self._run(environment, args, kwargs)


class ExtractingHandler(Handler):
    """A function for work that other programs submit; annotations say what each parameter is."""

    def __init__(self, kind: str, function: Callable[..., Any]) -> None:
        super().__init__(kind, function)
        self._names = list(inspect.signature(function).parameters)

    @cached_property
    def _wanted(self) -> list[tuple[str, Any, _From | None]]:
        hints = get_type_hints(self.function, include_extras=True)
        return [(name, *_marked(self.kind, name, hints.get(name))) for name in self._names]

    async def call(self, session: Session, environment: HandlerEnvironment) -> Any:
        async with AsyncExitStack() as stack:
            found = {
                name: await self._value(wanted, mark, session, environment, stack)
                for name, wanted, mark in self._wanted
            }
            return await self._run(environment, (), found)

    async def _value(
        self,
        wanted: Any,
        mark: _From | None,
        session: Session,
        environment: HandlerEnvironment,
        stack: AsyncExitStack,
    ) -> Any:
        claim = session.claim
        match mark:
            case None if wanted is TaskInfo:
                return info_of(claim)
            case None:
                await session.open()
                return self._context(session)
            case _From("data"):
                return await environment.resources.get(wanted, stack)
            case _From("bytes"):
                return await payload_of(claim, environment.calls)
            case _:
                body = await payload_of(claim, environment.calls)
                return codecs.decode(body, claim.payload_encoding or codecs.JSON, wanted)


async def in_thread(threads: Executor, function: Callable[[], Any]) -> Any:
    """A thread cannot be cancelled: the caller waits until it returns, also when cancelled."""
    context = copy_context()
    running = asyncio.get_running_loop().run_in_executor(threads, context.run, function)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            # Cancelled again, by a lost lease after a timeout for example.
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        # Retrieved, or asyncio would log it; the caller gets the cancellation.
        running.exception()
        raise


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether the first parameter is annotated as the context."""
    first = next(iter(inspect.signature(function).parameters.values()), None)
    return first is not None and bool(_context_in(first.annotation))


def _context_in(hint: object) -> str:
    """Which context an annotation names, if any."""
    name = hint.rpartition(".")[2] if isinstance(hint, str) else getattr(hint, "__name__", "")
    is_ours = isinstance(hint, str) or hint in _CONTEXTS
    return name if is_ours and name in ("Context", "SyncContext") else ""


def _check_declaration(kind: str, function: Callable[..., Any], *, is_async: bool) -> None:
    """Refuse what could only fail once a worker runs it."""
    inner = inspect.unwrap(function)
    if inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner):
        raise ConfigError(
            f"task.{kind}: a function that yields has no result; return one, and put out what comes"
            " on the way with ctx.stream"
        )
    contexts = [
        _context_in(one.annotation) for one in inspect.signature(function).parameters.values()
    ]
    if any(contexts[1:]):
        raise ConfigError(f"task.{kind}: the context is the first parameter")
    found = contexts[0] if contexts else ""
    if found == "SyncContext" and is_async:
        raise ConfigError(f"task.{kind}: a function that awaits takes a Context, no SyncContext")
    if found == "Context" and not is_async:
        raise ConfigError(
            f"task.{kind}: a plain function cannot await its Context; take a SyncContext, or make"
            " it `async def`"
        )


async def payload_of(claim: Claim, calls: WorkerCalls) -> bytes:
    if claim.input_deferred:
        return await calls.input(claim.execution_id)
    return claim.input or b""


async def _upstream_values(claim: Claim, calls: WorkerCalls) -> Mapping[str, object]:
    """The results of the named inputs as plain values, to be put in their places."""
    upstreams = claim.upstreams
    if not upstreams:
        upstreams = (await calls.upstreams(claim.execution_id, results=True)).upstreams
    values: dict[str, object] = {}
    for name in {one.data_ref for one in upstreams if one.data_ref}:
        found = chosen(upstreams, name)
        if found is not None:
            body = await upstream_result(found, calls)
            values[name] = codecs.decode(body, found.result_encoding or codecs.JSON)
    return values


def _marked(kind: str, name: str, hint: Any) -> tuple[Any, _From | None]:
    if get_origin(hint) is Annotated:
        wanted, *marks = get_args(hint)
        for mark in marks:
            if isinstance(mark, _From):
                return wanted, mark
    if hint in (*_CONTEXTS, TaskInfo):
        return hint, None
    raise ConfigError(
        f"handler.{kind}: {name}: expected Context, Payload[T], PayloadBytes, Data[T] or TaskInfo"
    )


Middleware = Callable[[TaskInfo, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Wraps a handler: takes the task's info and a function that calls the handler, and returns the
outcome."""
