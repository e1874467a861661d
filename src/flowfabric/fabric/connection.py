"""From an address to the calls of a program: those of a submitter and those of a worker."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self, TypeVar

import msgspec
from msgspec.structs import replace

from flowfabric.app import close_engine, duties_of, open_engine
from flowfabric.backend.base import Backend
from flowfabric.backend.types import With
from flowfabric.client.addresses import checked_token
from flowfabric.config import SERVER_SCHEMES, Settings, settings_for
from flowfabric.core.ids import PartitionCounts, parse_execution_id
from flowfabric.core.plan import Family
from flowfabric.core.tokens import Secret
from flowfabric.engine import Engine, engine_on
from flowfabric.engine.executions.waits import WITH_RESULT, end_of
from flowfabric.engine.partitions import counts_of
from flowfabric.errors import ConfigError, PartitionMismatch
from flowfabric.fabric.submitter import Submitter
from flowfabric.operations.declaration import Call, Operation, Transport
from flowfabric.operations.events import Cursor, Event, EventScope
from flowfabric.operations.execution_queries import Ended
from flowfabric.operations.executions import Submission
from flowfabric.operations.streams import FramePage, Tail
from flowfabric.telemetry.observer import NO_OBSERVER, Observer
from flowfabric.telemetry.operation_spans import spanned
from flowfabric.telemetry.traces import Traces
from flowfabric.worker.batching import gathered
from flowfabric.worker.calls import WorkerCalls
from flowfabric.worker.claiming import Claimer
from flowfabric.worker.layers import Hook, layered
from flowfabric.worker.telemetry import observed_worker, traced
from flowfabric.worker.worker_options import WorkerOptions, checked

P = TypeVar("P")

_MIN_POLL_MS: Final = 100


class Connection(msgspec.Struct, frozen=True):
    """The calls of submitter and worker, and how to close what is behind them. `engine` is set
    when it runs in this process."""

    submitter: Submitter
    worker: WorkerCalls
    close: Callable[[], Awaitable[None]]
    engine: Engine | None = None


Connect = Callable[[], Awaitable[Connection]]


def lazy(connect: Connect) -> Transport:
    """A transport that opens its connection with the first call."""

    def bind(declared: Operation[..., Any]) -> Call:
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await (await connect()).submitter.transport(declared)(*args, **kwargs)

        return call

    return bind


def connector(
    url: str | None,
    token: str | None,
    settings: Settings | None,
    observer: Callable[[], Observer] = lambda: NO_OBSERVER,
    *,
    duties: bool,
) -> Connect:
    """A function that connects to what the address names, reporting to the observer of then."""
    given = None if token is None else checked_token(token)

    async def connect() -> Connection:
        chosen = settings_for(url, settings)
        if chosen.store.scheme in SERVER_SCHEMES:
            return await connect_http(chosen.store.path, given or chosen.api_token, observer())
        if given is not None:
            raise ConfigError("token: a store needs none; only a server asks for one")
        return await connect_embedded(chosen, observer(), duties=duties)

    return connect


async def connect_http(url: str, token: Secret, observer: Observer = NO_OBSERVER) -> Connection:
    """Reach a server, which must answer and know the token."""
    try:
        from flowfabric.client.connection import connect, persistent
        from flowfabric.client.operations import http_transport
    except ModuleNotFoundError as fault:
        raise ConfigError(
            f"url: a server is reached with the package {fault.name}: install flowfabric[http]"
        ) from None
    server = await connect(url, token)
    transport = http_transport(server.rest)
    worker = observed_worker(WorkerCalls(gathered(persistent(transport)), server), observer)
    return Connection(Submitter(transport, server), worker, server.rest.close)


async def connect_embedded(
    settings: Settings, observer: Observer = NO_OBSERVER, *, duties: bool
) -> Connection:
    """Open a store in this process; with duties it is also looked after while it is open."""
    engine = await open_engine(settings, observer=observer)
    running = duties_of(engine, settings, observer) if duties else None
    if running is not None:
        running.start()
    connection = connection_on(engine)

    async def close() -> None:
        if running is not None:
            await running.stop()
        await close_engine(engine)

    return msgspec.structs.replace(connection, close=close)


async def _nothing_to_close() -> None:
    """The owner of the engine closes it."""


def connection_on(engine: Engine) -> Connection:
    """The calls to an engine that the caller opened and will close."""
    reads = EngineReads(engine)
    traces = Traces(backend=engine.deps.store.backend.describe().family)
    transport = spanned(engine.use_case, traces)
    submitter = Submitter(transport, reads)
    worker = WorkerCalls(transport, reads)
    return Connection(submitter, worker, _nothing_to_close, engine)


# ---- opened on first use


class LazyConnection:
    """Opens on first use; close it with `await fabric.close()` or use it in `async with`."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._opening: asyncio.Future[Connection] | None = None
        self._hooks: tuple[Hook, ...] = ()
        self._layered: tuple[Submitter, WorkerCalls] | None = None
        self._observer = NO_OBSERVER
        self._stand_in: LazyConnection | None = None

    @contextmanager
    def replaced_by(self, other: "LazyConnection") -> Iterator[None]:
        """For the length of a block every call goes to another connection. This one is not
        touched: if it is not open it stays so, if it is open it is used again afterwards."""
        before, self._stand_in = self._stand_in, other
        try:
            yield
        finally:
            self._stand_in = before

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """What was put around the calls, outermost last."""
        return self._hooks

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop it is open on."""
        if self._stand_in is not None:
            return self._stand_in.loop
        return None if self._opening is None else self._opening.get_loop()

    async def open(self) -> Connection:
        """Single-flight: concurrent callers share one attempt to connect; after a failure the next
        caller tries again."""
        if self._stand_in is not None:
            return await self._stand_in.open()
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._connect())
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except BaseException:
            if opening.done() and self._opening is opening:
                self._opening = None
            raise

    async def close(self) -> None:
        """Close what is open; a connection that stands in is closed by its owner."""
        if self._stand_in is not None:
            return
        opening, self._opening = self._opening, None
        self._layered = None
        if opening is not None:
            await (await opening).close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def observe(self, observer: Observer) -> None:
        """Report what happens to an observer, e.g. `Metrics()`; call it before the fabric opens."""
        if self._opening is not None:
            raise ConfigError("observe: the fabric is open already; call it before the first use")
        self._observer = observer

    def layer(self, *hooks: Hook) -> None:
        """Wrap the calls of submitter and worker; the hook given last is outermost."""
        self._hooks += hooks
        self._layered = None

    async def submitter(self) -> Submitter:
        if self._stand_in is not None:
            return await self._stand_in.submitter()
        return (await self._calls())[0]

    async def _worker_calls(self) -> WorkerCalls:
        if self._stand_in is not None:
            return await self._stand_in._worker_calls()
        return (await self._calls())[1]

    async def _calls(self) -> tuple[Submitter, WorkerCalls]:
        if self._layered is None:
            connection = await self.open()
            self._layered = self.wrapped(connection.submitter), self.wrapped(connection.worker)
        return self._layered

    def wrapped(self, calls: P) -> P:
        """Calls with their trace and the hooks around them."""
        return layered(traced(calls), *self._hooks)


# ---- an engine in this process

_WITH_INPUT: Final = frozenset[With]({"input"})


class EngineReads:
    """What programs and workers ask of an engine besides calling operations."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def call(self, submission: Submission) -> Ended:
        ended = end_of(await self._engine.waits.call(submission, WITH_RESULT))
        assert ended is not None
        return ended

    async def wait_ended(self, execution_id: str, timeout_s: float | None = None) -> Ended | None:
        parse_execution_id(execution_id, self._engine.deps.counts)
        return end_of(await self._engine.waits.until(execution_id, timeout_s, WITH_RESULT))

    async def tail(self, execution_id: str, attempt_index: int, asked: Tail) -> FramePage:
        # The limit on tails protects a server from its clients; here is only one.
        return await self._engine.streams.follow_stream(execution_id, attempt_index, asked)

    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> AsyncGenerator[Event, None]:
        return await self._engine.events.subscribe(families, scope, cursor)

    async def result(self, execution_id: str) -> bytes | None:
        return await self._engine.reads.get_execution_result(execution_id)

    async def input(self, execution_id: str) -> bytes:
        parse_execution_id(execution_id, self._engine.deps.counts)
        return (await self._engine.deps.seen(execution_id, _WITH_INPUT)).input or b""

    async def ended(self, execution_ids: Sequence[str]) -> list[Ended | None]:
        read = self._engine.deps.store.read
        found = await asyncio.gather(*(read(one, WITH_RESULT) for one in execution_ids))
        return [end_of(seen) for seen in found]


# ---- manual claiming without a fabric


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Who a worker is and what it takes. An instance id of one's own must be unique; without one
    it is made of host and process. Partition counts are those of the store unless given, the
    poll interval that of the settings."""

    lanes: tuple[str, ...]
    worker_id: str = "flowfabric"
    worker_instance_id: str = ""
    namespace: str = "default"
    capabilities: tuple[str, ...] = ()
    lease_ttl_ms: int = 30_000
    # How often a waiting claim looks while notifications are down; a server has its own setting.
    claim_poll_interval_ms: int | None = None
    max_concurrent_tasks: int = 1
    partition_config: PartitionCounts | None = None

    def options(self) -> WorkerOptions:
        if self.claim_poll_interval_ms is not None and self.claim_poll_interval_ms < _MIN_POLL_MS:
            raise ConfigError(f"worker.claim_poll_interval_ms: expected {_MIN_POLL_MS} or more")
        return WorkerOptions(
            worker_id=self.worker_id,
            instance_id=self.worker_instance_id,
            namespace=self.namespace,
            lanes=tuple(self.lanes),
            capabilities=tuple(self.capabilities),
            concurrency=self.max_concurrent_tasks,
            lease_ms=self.lease_ttl_ms,
        )


async def connect(
    config: WorkerConfig,
    url: str | None = None,
    *,
    token: str | None = None,
    settings: Settings | None = None,
) -> Claimer:
    """Open a store or reach a server, and register; `close` closes all of it."""
    checked(config.options())
    connection = await connector(url, token, settings, duties=False)()
    try:
        if connection.engine is not None:
            _check_counts(config, connection.engine.deps.counts)
        return await _started(config, connection)
    except BaseException:
        await connection.close()
        raise


async def connect_with(config: WorkerConfig, backend: Backend) -> Claimer:
    """The same on an open store, wrapped or not, which the caller closes."""
    checked(config.options())
    stored = await counts_of(backend)
    counts = stored or config.partition_config
    if counts is None:
        raise ConfigError("worker.partition_config: the store has no counts; expected them here")
    _check_counts(config, counts)
    return await _started(config, connection_on(engine_on(backend, counts)))


def _check_counts(config: WorkerConfig, counts: PartitionCounts) -> None:
    if config.partition_config not in (None, counts):
        raise PartitionMismatch(f"partition_config: {config.partition_config}, stored: {counts}")


async def _started(config: WorkerConfig, connection: Connection) -> Claimer:
    if connection.engine is not None and config.claim_poll_interval_ms is not None:
        deps = connection.engine.deps
        deps.limits = replace(deps.limits, claim_poll_ms=config.claim_poll_interval_ms)

    async def calls() -> WorkerCalls:
        return connection.worker

    claimer = Claimer(calls, config.options(), connection.close)
    await claimer.start()
    return claimer
