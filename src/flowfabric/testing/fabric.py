"""The fabric of a test: its workers, its answers to waiting executions, its assertions."""

import asyncio
from collections import ChainMap, Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Any, Final, Protocol, cast

import msgspec

from flowfabric.app import close_engine, open_engine
from flowfabric.backend.types import Filter
from flowfabric.config import Settings, parse_store_url
from flowfabric.engine import Engine
from flowfabric.errors import FlowFabricError
from flowfabric.fabric.app import FlowFabric
from flowfabric.fabric.connection import Connection, connection_on
from flowfabric.fabric.limits import Budget
from flowfabric.fabric.runs import Run
from flowfabric.fabric.submitter import Submitter
from flowfabric.operations.attempts import Kept, NewEntry
from flowfabric.operations.signals import Approval, Delivered, OpenWaitpoint
from flowfabric.operations.workers import Claim
from flowfabric.testing.clock import VirtualClock
from flowfabric.worker import codecs
from flowfabric.worker.calls import WorkerCalls
from flowfabric.worker.handlers import Middleware
from flowfabric.worker.runtime import Worker
from flowfabric.worker.session import JournalKey
from flowfabric.worker.waits import APPROVED, REJECTED

_TURNS: Final = 40
_SETTLE_TIMEOUT_S: Final = 0.5
_LONGEST_TURN_S: Final = 0.02


class Calls:
    """Counts calls, so that a test can wait until none is in flight."""

    def __init__(self) -> None:
        self.begun: Counter[str] = Counter()
        self.ended = 0
        self.in_flight = 0

    def before(self, method: str) -> FlowFabricError | None:
        self.begun[method] += 1
        self.in_flight += method not in _WAITING
        return None

    def after(self, method: str, elapsed_s: float, fault: BaseException | None) -> None:
        self.ended += 1
        self.in_flight -= method not in _WAITING


# Calls that are in flight while nothing happens.
_WAITING: Final = frozenset({"claim", "call", "watch", "wait_ended", "tail", "events"})


class Observer:
    """Sees what handlers do beside what they return."""

    def called(self, claim: Claim, key: JournalKey, args: tuple[Any, ...]) -> None:
        """A step runs its function."""

    def before_append(self, items: Sequence[NewEntry]) -> None:
        """Outcomes are about to be recorded; an exception keeps them from it."""

    def after_append(
        self, items: Sequence[NewEntry], answers: Sequence[Kept | FlowFabricError]
    ) -> None:
        """They were recorded; an exception takes the place of the answers."""

    def restarted(self) -> None:
        """The workers were restarted: what ran is handed back and entered again."""


class Kit(FlowFabric):
    """A fabric with a worker for every lane that a task was declared on. It runs the tasks of an
    app as its own, if it is given one."""

    clock: VirtualClock
    engine: Engine

    def __init__(
        self,
        app: FlowFabric | None = None,
        *,
        resources: Sequence[Any] = (),
        capabilities: Sequence[str] = (),
    ) -> None:
        super().__init__(namespace=app.namespace if app else "default", settings=Settings())
        if app is not None:
            # A test may declare more tasks here; the app does not keep them.
            self._handlers, self._lanes = app._handlers.extended(), ChainMap({}, app._lanes)
            self.layer(*app.hooks)
        self._resources, self._capabilities = resources, capabilities
        self.calls = Calls()
        self.middleware: list[Middleware] = []
        self.observers: list[Observer] = []
        self.budget_ids: set[str] = set()
        self._answers: dict[str, tuple[object, str]] = {}
        self._workers: dict[str, Worker] = {}
        self._restarting = asyncio.Lock()
        self.layer(self.calls)

    async def submitter(self) -> Submitter:
        await self.start_workers()
        return await super().submitter()

    async def _worker_calls(self) -> WorkerCalls:
        return cast(WorkerCalls, _Observed(await super()._worker_calls(), self.observers))

    async def budget(self, name: str, **limits: Any) -> Budget:
        found = await super().budget(name, **limits)
        self.budget_ids.add(found.id)
        return found

    def silence(self, attempt_id: str) -> None:
        """From now on nothing that this attempt does reaches the engine."""
        for worker in self._workers.values():
            worker.silence(attempt_id)

    async def start_workers(self) -> None:
        """One worker per lane; lanes come with the tasks, which a test declares as it goes."""
        for lane in self._lanes.keys() - self._workers.keys():
            options = self.worker(
                [lane],
                self._capabilities,
                middleware=[self._through],
                resources=self._resources,
            ).options
            timed = msgspec.structs.replace(
                options, monotonic=lambda: self.clock() / 1000, on_step=self._on_step
            )
            worker = Worker(self._worker_calls, self._handlers, timed)
            self._workers[lane] = worker
            await worker.start()

    def _on_step(self, claim: Claim, key: JournalKey, args: tuple[Any, ...]) -> None:
        for observer in self.observers:
            observer.called(claim, key, args)

    async def restart_workers(self) -> None:
        """As a deployment does: what runs is handed back, and other workers go on with it."""
        async with self._restarting:
            for worker in self._workers.values():
                worker.hurry()
            await self.stop_workers()
            for observer in self.observers:
                observer.restarted()
            await self.start_workers()

    async def stop_workers(self) -> None:
        for worker in self._workers.values():
            await worker.stop()
        self._workers.clear()

    async def _through(self, info: Any, go_on: Any) -> Any:
        """The middleware of the moment: a test may add some after the workers began."""
        for one in reversed(self.middleware):
            go_on = partial(one, info, go_on)
        return await go_on()

    # ---- waiting until idle

    async def settle(self) -> None:
        """Return when the workers have nothing to do, or wait for something that is not ours."""
        await self.start_workers()
        await self._quiet()
        while await self.has_unclaimed():
            await self._quiet()

    async def has_unclaimed(self) -> bool:
        """Whether there is work of which a worker will hear later. In memory it hears at once."""
        return False

    async def _quiet(self) -> None:
        loop = asyncio.get_running_loop()
        waited, quiet, seen = 0.0, 0, -1
        while quiet < _TURNS or (self._is_busy and waited < _SETTLE_TIMEOUT_S):
            began = loop.time()
            await asyncio.sleep(0)
            # Time in which the machine stood still does not count: no worker could use it.
            waited += min(loop.time() - began, _LONGEST_TURN_S)
            total = self.calls.begun.total() + self.calls.ended
            if total != seen or self.calls.in_flight or self._restarting.locked():
                waited, quiet, seen = 0.0, 0, total
            quiet += 1

    @property
    def _is_busy(self) -> bool:
        return any(worker.is_busy for worker in self._workers.values())

    # ---- people and the outside

    async def approve_next(self, by: str = "tester", comment: str = "") -> Delivered:
        """Approve what has waited longest for it."""
        return await self._decide(APPROVED, by, comment)

    async def reject_next(self, by: str = "tester", comment: str = "") -> Delivered:
        return await self._decide(REJECTED, by, comment)

    async def signal_next(self, name: str, payload: object = None) -> Delivered:
        """Signal what has waited longest for a signal of this name."""
        found = await self._next(name)
        delivered = await self.run(found.execution_id).signal(
            name, payload, waitpoint_id=found.waitpoint_id
        )
        await self.settle()
        return delivered

    def always_answer(self, name: str, payload: object = None, by: str = "tester") -> None:
        """Answer every wait for a signal of this name that the test does not answer itself."""
        self._answers[name] = payload, by

    async def answer_all(self) -> None:
        """Settle, and send the standing answers until no execution waits for one of them."""
        await self.settle()
        for name, (payload, by) in self._answers.items():
            while found := await self._waiting(name):
                await self.run(found.execution_id).signal(
                    name, payload, waitpoint_id=found.waitpoint_id, source=by
                )
                await self.settle()

    async def _decide(self, name: str, by: str, comment: str) -> Delivered:
        found = await self._next(name)
        delivered = await (await self.submitter()).approve(
            found.execution_id,
            found.waitpoint_id,
            Approval(
                signal_name=name,
                source_identity=by,
                payload=codecs.to_json({"comment": comment}),
            ),
        )
        await self.settle()
        return delivered

    async def _next(self, name: str) -> OpenWaitpoint:
        await self.settle()
        found = await self._waiting(name)
        if found is None:
            raise AssertionError(f"no execution waits for {name!r}")
        return found

    async def _waiting(self, name: str) -> OpenWaitpoint | None:
        port, cursor = await self.submitter(), ""
        while True:
            page = await self.engine.reads.search(Filter(state="suspended"), "created", cursor)
            for record in page.records:
                for one in await port.waitpoints(record.execution_id):
                    if name in one.required_signal_names:
                        return one
            cursor = page.next_cursor
            if not cursor:
                return None

    # ---- assertions

    async def assert_state(self, run: Run[Any], expected: str) -> None:
        await self.settle()
        found = await run.state()
        assert found == expected, f"{run.id} is {found}, expected {expected}"

    async def assert_frames(self, run: Run[Any], expected: Sequence[str]) -> None:
        """The texts of all frames of a run that has ended."""
        found = [frame.text async for frame in run.stream()]
        assert found == list(expected), f"{run.id} put out {found}, expected {list(expected)}"

    async def assert_events(self, run: Run[Any], expected: Sequence[str]) -> None:
        """What happened to the leases of a run, oldest first: acquired, released, reclaimed…"""
        await self.settle()
        found = [one.event for one in await run.history()]
        assert found == list(expected), f"{run.id}: {found}, expected {list(expected)}"

    async def assert_spent(self, budget: str, **expected: int) -> None:
        """What was used of a budget, by dimension."""
        usage = (await (await self.budget(budget)).status()).usage
        found = {name: usage.get(name, 0) for name in expected}
        assert found == expected, f"{budget}: {found} was spent, expected {expected}"


class _Observed:
    """Shows what is recorded to whoever observes."""

    def __init__(self, inner: Any, observers: Sequence[Observer]) -> None:
        self._inner = inner
        self._observers = observers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def append_journal(self, items: Sequence[NewEntry]) -> list[Kept | FlowFabricError]:
        for observer in list(self._observers):
            observer.before_append(items)
        answers: list[Kept | FlowFabricError] = await self._inner.append_journal(items)
        for observer in list(self._observers):
            observer.after_append(items, answers)
        return answers


class FabricOf(Protocol):
    """What the fixture `fabric_of` is: a kit for the fabric of a program."""

    async def __call__(
        self,
        app: FlowFabric,
        /,
        *,
        resources: Sequence[Any] = (),
        capabilities: Sequence[str] = (),
    ) -> Kit: ...


@asynccontextmanager
async def open_kit(
    clock: VirtualClock | None = None,
    *,
    app: FlowFabric | None = None,
    resources: Sequence[Any] = (),
    capabilities: Sequence[str] = (),
) -> AsyncIterator[Kit]:
    """A kit for the length of a block; afterwards the store must agree with itself.

    With an `app`, the fabric of a program, its tasks run in the kit, and all that the program does
    with its fabric reaches the kit. The program's own store is neither opened nor created.
    `resources` and `capabilities` are those of the workers."""
    kit = Kit(app, resources=resources, capabilities=capabilities)
    clock = clock or VirtualClock()
    engine = await open_engine(Settings(store=parse_store_url("memory://")), clock)
    try:
        async with opened(kit, engine, clock, connection_on(engine)):
            with nullcontext() if app is None else app.replaced_by(kit):
                if app is not None:
                    await app.put_schedules()
                yield kit
                await kit.stop_workers()
    finally:
        await close_engine(engine)


@asynccontextmanager
async def opened(
    kit: Kit, engine: Engine, clock: VirtualClock, connection: Connection
) -> AsyncIterator[None]:
    """The kit works on an engine that has this clock and that the caller closes."""

    async def connect() -> Connection:
        return connection

    kit._connect = connect
    kit.clock, kit.engine = clock, engine
    clock.drive(engine, kit.settle)
    try:
        yield
        await kit.stop_workers()
        assert await engine.deps.store.backend.verify() == []
    finally:
        await kit.stop_workers()
        await kit.close()
        clock.leave(engine)
