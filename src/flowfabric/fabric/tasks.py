"""Tasks: functions that can be submitted, with their own signature."""

from collections.abc import Awaitable, Callable, Iterable
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from flowfabric.errors import FlowFabricError
from flowfabric.fabric.options import Options, prepared
from flowfabric.fabric.runs import Run
from flowfabric.worker.children import BoundCall
from flowfabric.worker.context import Context, SyncContext
from flowfabric.worker.handlers import TaskHandler

P = ParamSpec("P")
R = TypeVar("R")


class Submitting(Protocol):
    """The part of a fabric that tasks need."""

    namespace: str

    def on(self, connection: object) -> "Submitting": ...

    async def submit_bound(self, call: BoundCall[R]) -> Run[R]: ...

    async def call(self, call: BoundCall[R]) -> R: ...

    async def submit_many(
        self, calls: Iterable[BoundCall[R]]
    ) -> list[Run[R] | FlowFabricError]: ...


class Task(Generic[P, R]):
    """A declared function. Calling it runs it here and now; `submit` has it run by a worker."""

    def __init__(self, fabric: Submitting, handler: TaskHandler, options: Options) -> None:
        self._fabric = fabric
        self._handler = handler
        self._options = options
        # A call without arguments.
        self.template: BoundCall[R] = prepared(
            handler.kind, options, fabric.namespace, lambda: handler.signature.result_type
        )
        update_wrapper(self, handler.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The plain function, for tests and for other functions."""
        return self._handler.function(*args, **kwargs)

    @property
    def name(self) -> str:
        return self._handler.kind

    @property
    def lane(self) -> str:
        return self.template.submission.lane

    def options(self, **changed: Unpack[Options]) -> "Task[P, R]":
        """The same task with other options for the calls made through it."""
        merged: Options = {**self._options, **changed}
        return Task(self._fabric, self._handler, merged)

    def on(self, connection: object) -> "Task[P, R]":
        """The same task, submitted in the transaction that is open on a connection of the
        caller's: `await task.on(connection).submit(...)`. Only with Postgres."""
        return Task(self._fabric.on(connection), self._handler, self._options)

    def takes(self, name: str) -> bool:
        """Whether the function has a parameter of this name."""
        return self._handler.signature.takes(name)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall[R]:
        """The task with its arguments, to be submitted with others or as a child."""
        return self.template.with_payload(*self._handler.signature.encode(args, kwargs))

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        return await self._fabric.submit_bound(self.bind(*args, **kwargs))

    async def submit_many(self, calls: Iterable[BoundCall[R]]) -> list[Run[R] | FlowFabricError]:
        """Submit bound calls together; answers in order, each by itself."""
        return await self._fabric.submit_many(calls)

    async def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Submit and wait for the result."""
        return await self._fabric.call(self.bind(*args, **kwargs))


class Declare(Protocol):
    """What `fabric.task(...)` answers: a decorator that keeps the types of what it decorates."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Awaitable[R]], /
    ) -> Task[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[SyncContext, P], R], /) -> Task[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
