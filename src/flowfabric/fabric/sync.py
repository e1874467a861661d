"""`fabric.sync`: the same fabric for code that blocks, typed as the asynchronous one is."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Generic, Self, TypeVar, Unpack

from flowfabric.errors import ConfigError, FlowFabricError
from flowfabric.fabric.admin import SyncAdmin
from flowfabric.fabric.app import FlowFabric
from flowfabric.fabric.blocking import Facade, LoopThread, blocking, blocking_each
from flowfabric.fabric.flows import Flow, FlowRun
from flowfabric.fabric.nodes import Node
from flowfabric.fabric.options import Options
from flowfabric.fabric.runs import Run
from flowfabric.fabric.transactions import InTransaction
from flowfabric.worker.children import BoundCall
from flowfabric.worker.durations import Duration
from flowfabric.worker.runtime import Worker

R = TypeVar("R")


class SyncRun(Facade[Run[R]], Generic[R]):
    """A run whose calls block."""

    @property
    def id(self) -> str:
        return self._source.id

    def __repr__(self) -> str:
        return f"SyncRun({self.id!r})"

    def result(self, timeout: Duration | None = None) -> R:
        """The decoded result as soon as it is there; how else it ended is raised."""
        return self._thread.run(self._source.result(timeout))

    wait = blocking(Run.wait)
    stream = blocking_each(Run.stream)
    state = blocking(Run.state)
    info = blocking(Run.info)
    explain = blocking(Run.explain)
    attempts = blocking(Run.attempts)
    history = blocking(Run.history)
    traceback = blocking(Run.traceback)
    summary = blocking(Run.summary)
    signal = blocking(Run.signal)
    approve = blocking(Run.approve)
    reject = blocking(Run.reject)
    cancel = blocking(Run.cancel)
    replay = blocking(Run.replay)
    set_tags = blocking(Run.set_tags)


class SyncFlowRun(Facade[FlowRun]):
    """A submitted flow whose calls block."""

    @property
    def id(self) -> str:
        return self._source.id

    def run(self, node: Node[R]) -> SyncRun[R]:
        """The run of one node."""
        return SyncRun(self._source.run(node), self._thread)

    def result(self, node: Node[R], timeout: Duration | None = None) -> R:
        """The decoded result of a node as soon as it is there; how else it ended is raised."""
        return self.run(node).result(timeout)

    results = blocking(FlowRun.results)
    wait = blocking(FlowRun.wait)
    state = blocking(FlowRun.state)
    info = blocking(FlowRun.info)
    members = blocking(FlowRun.members)
    cancel = blocking(FlowRun.cancel)
    replay = blocking(FlowRun.replay)


class SyncInTransaction(Facade[InTransaction]):
    """Submits in a transaction of the caller's, and blocks."""

    def submit(self, kind: str, payload: object = None, **options: Unpack[Options]) -> SyncRun[Any]:
        """Submit work by the name of its kind."""
        run = self._thread.run(self._source.submit(kind, payload, **options))
        return SyncRun(run, self._thread)

    def submit_bound(self, call: BoundCall[R]) -> SyncRun[R]:
        """Submit a call of a task: `submit_bound(task.bind(1, b=2))`."""
        return SyncRun(self._thread.run(self._source.submit_bound(call)), self._thread)


class SyncFabric(Facade[FlowFabric]):
    """Everything happens on one loop in a thread of its own, so a fabric is used either this way
    or with `await`. It opens on first use; leave it with `close` or a `with` block."""

    def __init__(self, fabric: FlowFabric) -> None:
        super().__init__(fabric, LoopThread(self._check))

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._source.loop not in (None, loop):
            raise ConfigError("sync: the fabric is open on another event loop")

    # ---- life

    def __enter__(self) -> Self:
        self._thread.run(self._source.open())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._thread.run(self._source.close())
        self._thread.stop()

    # ---- submitting

    def submit(self, kind: str, payload: object = None, **options: Unpack[Options]) -> SyncRun[Any]:
        """Submit work by the name of its kind."""
        return self._run(self._thread.run(self._source.submit(kind, payload, **options)))

    def submit_bound(self, call: BoundCall[R]) -> SyncRun[R]:
        """Submit a call of a task: `submit_bound(task.bind(1, b=2))`."""
        return self._run(self._thread.run(self._source.submit_bound(call)))

    def call(self, call: BoundCall[R], timeout: Duration | None = None) -> R:
        """Submit a call of a task and wait for its result."""
        return self.submit_bound(call).result(timeout)

    def submit_many(self, calls: Iterable[BoundCall[R]]) -> list[SyncRun[R] | FlowFabricError]:
        """Submit calls together; answers in order, each by itself."""
        found = self._thread.run(self._source.submit_many(calls))
        return [one if isinstance(one, FlowFabricError) else self._run(one) for one in found]

    def on(self, connection: object) -> "SyncInTransaction":
        """Submits in the transaction that is open on a connection of the caller's."""
        return SyncInTransaction(self._source.on(connection), self._thread)

    def submit_flow(self, flow: Flow) -> SyncFlowRun:
        """Submit a flow that was built with `fabric.flow()`."""
        return SyncFlowRun(self._thread.run(flow.submit()), self._thread)

    def run(self, execution_id: str) -> SyncRun[Any]:
        """A run for an execution whose id is known."""
        return self._run(self._source.run(execution_id))

    def _run(self, run: Run[R]) -> SyncRun[R]:
        return SyncRun(run, self._thread)

    # ---- others

    @cached_property
    def admin(self) -> SyncAdmin:
        """Every operation, blocking."""
        return SyncAdmin(self._source.admin, self._thread)

    @contextmanager
    def working(self, worker: Worker) -> Iterator[Worker]:
        """Let a worker run as long as the block: `with fabric.sync.working(fabric.worker()):`."""
        self._thread.run(worker.start())
        try:
            yield worker
        finally:
            self._thread.run(worker.stop())

    events = blocking_each(FlowFabric.events)
    tasks = blocking_each(FlowFabric.tasks)
    signal = blocking(FlowFabric.signal)
    budget = blocking(FlowFabric.budget)
    quota = blocking(FlowFabric.quota)
    put_schedules = blocking(FlowFabric.put_schedules)
    list = blocking_each(FlowFabric.list)
    budgets = blocking_each(FlowFabric.budgets)
    quotas = blocking_each(FlowFabric.quotas)
