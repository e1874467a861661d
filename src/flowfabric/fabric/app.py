"""The app object: one address, the tasks declared on it, and everything one does with them."""

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from contextlib import aclosing
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack

from msgspec.structs import replace

from flowfabric.config import Settings, StoreUrl, settings_for
from flowfabric.core.ids import check_namespace
from flowfabric.core.plan import Family
from flowfabric.core.tokens import WaitpointToken
from flowfabric.errors import ConfigError, FlowFabricError, InvalidInput
from flowfabric.fabric.admin import Admin
from flowfabric.fabric.connection import Connect, LazyConnection, connector, lazy
from flowfabric.fabric.flows import Flow
from flowfabric.fabric.limits import Budget, Limits, Quota, WantedBudget, WantedQuota
from flowfabric.fabric.listing import Listing, search_of
from flowfabric.fabric.options import Options, names_in
from flowfabric.fabric.runs import Run, result_of
from flowfabric.fabric.schedules import ScheduleTerms, TaskSchedule, new_schedule
from flowfabric.fabric.submitter import MOST_PER_PAGE, Submitter, every, new_signal
from flowfabric.fabric.tasks import Declaring, Task, Tasks
from flowfabric.fabric.transactions import InTransaction, bound, runs_of
from flowfabric.operations.budgets import NamedBudget, NamedQuota
from flowfabric.operations.events import Cursor, Event, EventScope
from flowfabric.operations.execution_queries import FoundExecution
from flowfabric.operations.nouns import Calls
from flowfabric.operations.schedules import NewSchedule, ScheduleInfo
from flowfabric.operations.signals import Delivered
from flowfabric.operations.tasks import TaskInfo
from flowfabric.worker.calls import WorkerCalls
from flowfabric.worker.children import BoundCall
from flowfabric.worker.claiming import Claimer
from flowfabric.worker.durations import Duration, milliseconds, optional_ms
from flowfabric.worker.handlers import ExtractingHandler, Handler, Handlers, Middleware, TaskHandler
from flowfabric.worker.runtime import Worker
from flowfabric.worker.worker_options import WorkerOptions

if TYPE_CHECKING:
    from flowfabric.fabric.sync import SyncFabric

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")
T = TypeVar("T", bound=Task[..., Any])

# Within the class `list` is a method.
Runs = list[Run[R] | FlowFabricError]

_COMPLETIONS: Final = frozenset[Family]({"completion"})


class FlowFabric(LazyConnection, Declaring):
    """Opens on first use; close it with `await fabric.close()` or use it in `async with`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str = "default",
        token: str | None = None,
        duties: bool = True,
        settings: Settings | None = None,
    ) -> None:
        super().__init__(connector(url, token, settings, lambda: self._observer, duties=duties))
        self._address = url, settings
        self.namespace = _namespace(namespace)
        self._limits = Limits(Calls(lazy(self.open)), self.namespace)
        self._handlers = Handlers()
        self._lanes: MutableMapping[str, None] = {}
        self._repeated: dict[str, NewSchedule] = {}

    @property
    def where(self) -> str:
        """What it is connected to, for people, without its password."""
        return settings_for(*self._address).store.where

    @property
    def named_store(self) -> StoreUrl | None:
        """The store that the program itself names; None when it leaves that to the environment."""
        return settings_for(*self._address).store if any(self._address) else None

    @classmethod
    def over(cls, connect: Connect, *, namespace: str = "default") -> "FlowFabric":
        """A fabric with another connection: to a test's own engine, or over another transport."""
        fabric = cls(settings=Settings(), namespace=namespace)
        fabric._connect = connect
        return fabric

    @cached_property
    def admin(self) -> Admin:
        """Every operation, awaited."""
        return Admin(lazy(self.open), self._unlayered)

    async def _unlayered(self) -> Submitter:
        return (await self.open()).submitter

    @cached_property
    def sync(self) -> "SyncFabric":
        """The same for code that blocks."""
        from flowfabric.fabric.sync import SyncFabric

        return SyncFabric(self)

    # ---- declaring

    def _declared(self, handler: TaskHandler, options: Options) -> Task[Any, Any]:
        task: Task[Any, Any] = Task(lambda: self, handler, options, self.namespace)
        self.register({handler: task.lane})
        return task

    def include(self, tasks: Tasks) -> None:
        """Run and submit the tasks that were declared apart from a fabric."""
        tasks.join(self)

    def handler(self, kind: str, *, lane: str = "default") -> Callable[[F], F]:
        """Register a function for work that other programs submit; with `*` as the kind, for work
        of every kind that has no handler of its own here."""

        def register(function: F) -> F:
            self.register({ExtractingHandler(kind, function): lane})
            return function

        return register

    def register(self, lanes: Mapping[Handler, str]) -> None:
        """Have workers run these handlers on their lanes; none of them, if one is refused."""
        self._handlers.add(*lanes)
        self._lanes.update(dict.fromkeys(lanes.values()))

    @property
    def kinds(self) -> tuple[str, ...]:
        """What its workers run, as it was declared; `*` stands for every other kind."""
        return self._handlers.names

    def worker(  # noqa: PLR0913 - each keyword is an option of its own
        self,
        lanes: Sequence[str] | None = None,
        capabilities: Sequence[str] = (),
        *,
        concurrency: int = 64,
        prefetch: int | None = None,
        lease: Duration = "30s",
        drain: Duration = "30s",
        worker_id: str | None = None,
        middleware: Sequence[Middleware] = (),
        resources: Sequence[Any] = (),
        build: str = "",
    ) -> Worker:
        """A worker for the registered tasks; it begins with `run` or `async with`."""
        options = WorkerOptions(
            worker_id=worker_id or "flowfabric",
            namespace=self.namespace,
            lanes=tuple(self._lanes) if lanes is None else names_in(lanes, "worker.lanes"),
            capabilities=names_in(capabilities, "worker.capabilities"),
            concurrency=concurrency,
            prefetch=prefetch,
            lease_ms=milliseconds(lease, "lease"),
            drain_s=milliseconds(drain, "drain") / 1000,
            middleware=tuple(middleware),
            resources=tuple(resources),
            build=build,
        )
        return Worker(self._work, self._handlers, options)

    def claimer(
        self,
        lanes: Sequence[str] = ("default",),
        capabilities: Sequence[str] = (),
        *,
        permits: int = 1,
        lease: Duration = "30s",
        worker_id: str = "flowfabric",
    ) -> Claimer:
        """Claims one by one, for programs with a loop of their own."""
        options = WorkerOptions(
            worker_id=worker_id,
            namespace=self.namespace,
            lanes=names_in(lanes, "worker.lanes"),
            capabilities=names_in(capabilities, "worker.capabilities"),
            concurrency=permits,
            lease_ms=milliseconds(lease, "lease"),
        )
        return Claimer(self._worker_calls, options)

    # ---- submitting

    async def submit(
        self, kind: str, payload: object = None, **options: Unpack[Options]
    ) -> Run[Any]:
        """Submit work by the name of its kind; the payload is bytes or anything encodable."""
        return await self.submit_bound(bound(kind, payload, options, self.namespace))

    async def submit_bound(self, call: BoundCall[R]) -> Run[R]:
        port = await self.submitter()
        now = await port.now() if call.delay_ms else 0
        submitted = await port.submit(call.at(now))
        return Run(submitted.execution_id, self.submitter, call.result_type)

    def on(self, connection: object) -> InTransaction:
        """Submits in the transaction that is open on a connection of psycopg, asyncpg, SQLAlchemy
        or Django. An execution exists exactly when the caller commits. Only with Postgres."""
        return InTransaction(self, self.namespace, connection)

    async def call(self, call: BoundCall[R]) -> R:
        """Submit a call of a task and wait for its result."""
        port = await self.submitter()
        now = await port.now() if call.delay_ms else 0
        value: R = await result_of(port, await port.call(call.at(now)), call.result_type())
        return value

    async def submit_many(self, calls: Iterable[BoundCall[R]]) -> "Runs[R]":
        """Submit bound calls (`task.bind(…)`) together; answers in order, each by itself."""
        port, wanted = await self.submitter(), list(calls)
        now = await port.now() if any(call.delay_ms for call in wanted) else 0
        answers = await port.submit_many([call.at(now) for call in wanted])
        return runs_of(wanted, answers, self.submitter)

    def flow(
        self,
        kind: str = "",
        *,
        idempotency_key: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Flow:
        """A graph of tasks to be filled with `add` and submitted as a whole."""
        return Flow(
            self.submitter,
            kind,
            namespace=self.namespace,
            idempotency_key=idempotency_key or "",
            tags=tags or {},
        )

    def run(self, execution_id: str) -> Run[Any]:
        """A run for an execution whose id is known."""
        return Run(execution_id, self.submitter)

    def run_of(self, execution_id: str, call: BoundCall[R]) -> Run[R]:
        """The same with the result of a call; for tasks there is `task.run(execution_id)`."""
        return Run(execution_id, self.submitter, call.result_type)

    async def list(self, **query: Unpack[Listing]) -> AsyncIterator[FoundExecution]:
        """Executions of the fabric's namespace that match all that is given, newest first."""
        port, search = await self.submitter(), search_of(query, self.namespace)
        async for one in every(lambda cursor: port.search(replace(search, cursor=cursor))):
            yield one

    async def signal(
        self,
        /,
        execution_id: str,
        waitpoint_id: str,
        token: WaitpointToken | str,
        name: str,
        payload: object = None,
        **more: str,
    ) -> Delivered:
        """Deliver a signal to a waitpoint; `more` may name category, source_type,
        source_identity, scope, signal_id, idempotency_key and correlation_id."""
        new = new_signal(waitpoint_id, token, name, payload, **more)
        return await (await self.submitter()).signal(execution_id, new)

    # ---- schedules

    async def schedule(
        self,
        schedule_id: str,
        task: Task[..., R] | BoundCall[R],
        args: Sequence[Any] = (),
        **terms: Unpack[ScheduleTerms],
    ) -> TaskSchedule[R]:
        """Have a task submitted repeatedly, at an interval (`every`) or at the times of a `cron`
        expression. Putting the same schedule again, at every start for example, moves no time."""
        if isinstance(task, Task):
            call = task.bind(*args)
        elif args:
            raise ConfigError("schedule: a bound call has its arguments already")
        else:
            call = task
        new = new_schedule(call, terms)
        await (await self.submitter()).put_schedule(schedule_id, new)
        return TaskSchedule(schedule_id, new.namespace, self.submitter, call)

    def repeated(
        self, schedule_id: str, *, args: Sequence[Any] = (), **terms: Unpack[ScheduleTerms]
    ) -> Callable[[T], T]:
        """Declare a schedule beside its task: `@fabric.repeated("nightly", cron="@daily")` above
        `@fabric.task`. A worker puts it when it starts."""

        def declare(task: T) -> T:
            if schedule_id in self._repeated:
                raise ConfigError(f"schedule {schedule_id}: it is declared twice")
            self._repeated[schedule_id] = new_schedule(task.bind(*args), terms)
            return task

        return declare

    async def put_schedules(self) -> None:
        """Put the schedules that are declared with `repeated`, as a worker does when it starts."""
        port = await self.submitter()
        for schedule_id, new in self._repeated.items():
            await port.put_schedule(schedule_id, new)

    async def _work(self) -> WorkerCalls:
        await self.put_schedules()
        return await self._worker_calls()

    def scheduled(self, schedule_id: str, namespace: str | None = None) -> TaskSchedule[Any]:
        """A schedule whose id is known, of the fabric's namespace unless another is given."""
        own = self.namespace if namespace is None else namespace
        return TaskSchedule(schedule_id, own, self.submitter)

    async def schedules(self) -> AsyncIterator[ScheduleInfo]:
        """Every schedule of the fabric's namespace, by id."""
        port = await self.submitter()
        pages = every(lambda cursor: port.list_schedules(self.namespace, cursor, MOST_PER_PAGE))
        async for schedule in pages:
            yield schedule

    async def tasks(self) -> AsyncIterator[TaskInfo]:
        """What workers have registered in the fabric's namespace, by kind."""
        port = await self.submitter()
        pages = every(
            lambda cursor: port.list_tasks(self.namespace, cursor=cursor, limit=MOST_PER_PAGE)
        )
        async for task in pages:
            yield task

    # ---- limits and events

    async def budget(  # noqa: PLR0913 - each keyword is an option of its own
        self,
        name: str,
        *,
        hard: Mapping[str, int] | None = None,
        soft: Mapping[str, int] | None = None,
        reset: Duration | None = None,
        parent: str | None = None,
        on_hard_limit: str | None = None,
        update: bool = True,
    ) -> Budget:
        """Define a budget, or give an existing one these limits; what is left out stays as it is.
        With `update=False` an existing one that has others is a `Conflict`."""
        reset_ms = optional_ms(reset, "reset")
        terms = WantedBudget(hard=hard, soft=soft, reset_ms=reset_ms, on_hard_limit=on_hard_limit)
        return await self._limits.budget(name, parent, terms, update)

    async def quota(
        self,
        name: str,
        *,
        starts: int | None = None,
        window: Duration | None = None,
        concurrent: int | None = None,
        jitter: Duration | None = None,
        update: bool = True,
    ) -> Quota:
        """Define a quota: starts per window (a minute), and how many may run at once. An existing
        one gets these limits; what is left out stays as it is. With `update=False` an existing one
        that has others is a `Conflict`."""
        terms = WantedQuota(starts=starts, window=window, concurrent=concurrent, jitter=jitter)
        return await self._limits.quota(name, terms, update)

    async def budgets(self) -> AsyncIterator[NamedBudget]:
        """Every budget of the fabric's namespace, by name."""
        async for one in self._limits.budgets():
            yield one

    async def quotas(self) -> AsyncIterator[NamedQuota]:
        """Every quota of the fabric's namespace, by name."""
        async for one in self._limits.quotas():
            yield one

    async def events(
        self,
        families: Collection[Family] = _COMPLETIONS,
        filter: EventScope | None = None,
        cursor: Cursor = "",
    ) -> AsyncGenerator[Event, None]:
        """Follow what happens, from now on, from a cursor on, or from the `oldest` entry kept."""
        scope = filter or EventScope(namespace=self.namespace)
        port = await self.submitter()
        async with aclosing(await port.events(families, scope, cursor)) as events:
            async for event in events:
                yield event


def _namespace(text: str) -> str:
    try:
        return check_namespace(text)
    except InvalidInput as fault:
        raise ConfigError(fault.detail) from fault
