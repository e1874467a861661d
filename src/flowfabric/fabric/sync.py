"""`fabric.sync`: the same fabric for code that blocks, typed as the asynchronous one is."""

import asyncio
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final, Generic, Self, TypeVar, Unpack

from flowfabric.core.plan import Family
from flowfabric.core.tokens import WaitpointToken
from flowfabric.errors import ConfigError, FlowFabricError
from flowfabric.fabric.admin import SyncAdmin
from flowfabric.fabric.app import FlowFabric
from flowfabric.fabric.blocking import Facade, LoopThread, blocking
from flowfabric.fabric.flows import Flow, FlowRun
from flowfabric.fabric.nodes import Node
from flowfabric.fabric.options import Options
from flowfabric.fabric.runs import Frame, Run
from flowfabric.operations.events import Cursor, Event, EventScope
from flowfabric.operations.execution_queries import Ended
from flowfabric.operations.signals import Delivered
from flowfabric.worker.children import BoundCall
from flowfabric.worker.durations import Duration
from flowfabric.worker.runtime import Worker

R = TypeVar("R")

_COMPLETIONS: Final = frozenset[Family]({"completion"})


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

    def wait(self, timeout: Duration | None = None) -> Ended:
        return self._thread.run(self._source.wait(timeout))

    def stream(self, after: str | None = None) -> Iterator[Frame]:
        """Frames as they come, until the last attempt has ended."""
        return self._thread.each(self._source.stream(after))

    state = blocking(Run.state)
    info = blocking(Run.info)
    explain = blocking(Run.explain)
    attempts = blocking(Run.attempts)
    history = blocking(Run.history)
    traceback = blocking(Run.traceback)
    summary = blocking(Run.summary)
    signal = blocking(Run.signal)
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

    wait = blocking(FlowRun.wait)
    state = blocking(FlowRun.state)
    info = blocking(FlowRun.info)
    members = blocking(FlowRun.members)
    cancel = blocking(FlowRun.cancel)
    replay = blocking(FlowRun.replay)


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

    def events(
        self,
        families: Collection[Family] = _COMPLETIONS,
        filter: EventScope | None = None,
        cursor: Cursor = "",
    ) -> Iterator[Event]:
        """Follow what happens, from now on or from a cursor on."""
        return self._thread.each(self._source.events(families, filter, cursor))

    @contextmanager
    def working(self, worker: Worker) -> Iterator[Worker]:
        """Let a worker run as long as the block: `with fabric.sync.working(fabric.worker()):`."""
        self._thread.run(worker.start())
        try:
            yield worker
        finally:
            self._thread.run(worker.stop())

    def signal(
        self,
        execution_id: str,
        waitpoint_id: str,
        token: WaitpointToken | str,
        name: str,
        payload: object = None,
        **more: str,
    ) -> Delivered:
        """Deliver a signal to a waitpoint."""
        call = self._source.signal(execution_id, waitpoint_id, token, name, payload, **more)
        return self._thread.run(call)

    budget = blocking(FlowFabric.budget)
    quota = blocking(FlowFabric.quota)
