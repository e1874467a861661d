"""Tasks: functions that can be submitted, with their own signature."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, overload

from flowfabric.errors import ConfigError, FlowFabricError
from flowfabric.fabric.options import Options, prepared, retry_classes
from flowfabric.fabric.runs import Run
from flowfabric.worker.children import BoundCall
from flowfabric.worker.context import Context, SyncContext
from flowfabric.worker.handlers import Handler, TaskHandler

P = ParamSpec("P")
R = TypeVar("R")


class Submitting(Protocol):
    """The part of a fabric that tasks need."""

    namespace: str

    def on(self, connection: object) -> "Submitting": ...

    async def submit_bound(self, call: BoundCall[R]) -> Run[R]: ...

    def run_of(self, execution_id: str, call: BoundCall[R]) -> Run[R]: ...

    async def call(self, call: BoundCall[R]) -> R: ...

    async def submit_many(
        self, calls: Iterable[BoundCall[R]]
    ) -> list[Run[R] | FlowFabricError]: ...


class Task(Generic[P, R]):
    """A declared function. Calling it runs it here and now; `submit` has it run by a worker."""

    def __init__(
        self,
        reach: Callable[[], Submitting],
        handler: TaskHandler,
        options: Options,
        namespace: str = "",
    ) -> None:
        """Without a namespace it is that of the fabric, which is reached when the task is first
        submitted."""
        self._reach = reach
        self._handler = handler
        self._options = options
        self._namespace = namespace
        # A wrong option is refused here, wherever the task is included later.
        self._prepared = self._prepare()
        update_wrapper(self, handler.function)

    def _prepare(self) -> BoundCall[R]:
        handler = self._handler
        return prepared(
            handler.kind,
            self._options,
            self._namespace or "default",
            lambda: handler.signature.result_type,
        )

    @property
    def template(self) -> BoundCall[R]:
        """A call without arguments."""
        if not self._namespace:
            self._namespace = self._reach().namespace
            self._prepared = self._prepare()
        return self._prepared

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The plain function, for tests and for other functions."""
        return self._handler.function(*args, **kwargs)

    @property
    def name(self) -> str:
        return self._handler.kind

    @property
    def lane(self) -> str:
        return self._prepared.submission.lane

    def options(self, **changed: Unpack[Options]) -> "Task[P, R]":
        """The same task with other options for the calls made through it."""
        if retry_classes(changed):
            raise ConfigError(
                "options.retry_on: exception classes belong to the declaration of the task, where"
                " its workers read them; name categories here"
            )
        merged: Options = {**self._options, **changed}
        return Task(self._reach, self._handler, merged, self._namespace)

    def on(self, connection: object) -> "Task[P, R]":
        """The same task, submitted in the transaction that is open on a connection of the
        caller's: `await task.on(connection).submit(...)`. Only with Postgres."""
        fabric = self._reach().on(connection)
        return Task(lambda: fabric, self._handler, self._options, fabric.namespace)

    def takes(self, name: str) -> bool:
        """Whether the function has a parameter of this name."""
        return self._handler.signature.takes(name)

    def bind(self, *args: P.args, **kwargs: P.kwargs) -> BoundCall[R]:
        """The task with its arguments, to be submitted with others or as a child."""
        return self.template.with_payload(*self._handler.signature.encode(args, kwargs))

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        return await self._reach().submit_bound(self.bind(*args, **kwargs))

    def run(self, execution_id: str) -> Run[R]:
        """The run of an execution of this task whose id is known, with the type of its result."""
        return self._reach().run_of(execution_id, self.template)

    async def submit_many(self, calls: Iterable[BoundCall[R]]) -> list[Run[R] | FlowFabricError]:
        """Submit bound calls together; answers in order, each by itself."""
        return await self._reach().submit_many(calls)

    async def call(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Submit and wait for the result."""
        return await self._reach().call(self.bind(*args, **kwargs))


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


class Declaring:
    """Where tasks are declared."""

    @overload
    def task(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...

    @overload
    def task(self, function: Callable[Concatenate[SyncContext, P], R], /) -> Task[P, R]: ...

    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(self, /, *, name: str = "", **options: Unpack[Options]) -> Declare: ...

    def task(self, function: Any = None, /, *, name: str = "", **options: Unpack[Options]) -> Any:
        """Declare a task: `@fabric.task` or `@fabric.task(lane="research", retries=3)`."""

        def declare(declared: Callable[..., Any]) -> Task[Any, Any]:
            handler = TaskHandler(name or declared.__name__, declared)
            handler.retry_on = retry_classes(options)
            task = self._declared(handler, options)
            handler.template = lambda: task.template
            return task

        return declare if function is None else declare(function)

    def _declared(self, handler: TaskHandler, options: Options) -> Task[Any, Any]:
        """The task, where workers find it."""
        raise NotImplementedError


class Including(Submitting, Protocol):
    """The part of a fabric that included tasks need."""

    def register(self, lanes: Mapping[Handler, str]) -> None: ...


class Tasks(Declaring):
    """Tasks declared apart from a fabric, which takes them with `fabric.include(tasks)`."""

    def __init__(self) -> None:
        self._lanes: dict[Handler, str] = {}
        self._fabric: Including | None = None

    @property
    def is_included(self) -> bool:
        return self._fabric is not None

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(handler.kind for handler in self._lanes)

    def _declared(self, handler: TaskHandler, options: Options) -> Task[Any, Any]:
        if handler.kind in self.kinds:
            raise ConfigError(f"task.{handler.kind}: it is declared twice")
        task: Task[Any, Any] = Task(lambda: self._home(handler.kind), handler, options)
        if self._fabric is not None:
            self._fabric.register({handler: task.lane})
        self._lanes[handler] = task.lane
        return task

    def _home(self, kind: str) -> Submitting:
        if self._fabric is None:
            raise ConfigError(f"task.{kind}: it is in no fabric yet: call fabric.include(tasks)")
        return self._fabric

    def join(self, fabric: Including) -> None:
        """Have them all run and submitted by a fabric."""
        if self._fabric not in (None, fabric):
            raise ConfigError("tasks: another fabric includes them")
        fabric.register(self._lanes)
        self._fabric = fabric
