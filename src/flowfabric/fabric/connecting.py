"""From an address to the calls of a program: those of a submitter and those of a worker."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from flowfabric.app import close_engine, duties_of, open_engine
from flowfabric.client.addresses import checked_token
from flowfabric.config import SERVER_SCHEMES, Settings, settings_for
from flowfabric.core.tokens import Secret
from flowfabric.engine import Engine
from flowfabric.errors import ConfigError
from flowfabric.fabric.submitter import Submitter
from flowfabric.fabric.waiting import EngineWaiter
from flowfabric.fabric.worker_reads import EngineReads
from flowfabric.operations.declaration import Call, Operation, Transport
from flowfabric.telemetry.observer import NO_OBSERVER, Observer
from flowfabric.worker.calls import WorkerCalls
from flowfabric.worker.observing import observed_worker


class Connection(msgspec.Struct, frozen=True):
    """The calls of submitter and worker, and how to close what is behind them. An engine in this
    process is here for those who need more of it."""

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
    """How to reach what the address names, once somebody wants to, and whom to tell then."""
    checked = None if token is None else checked_token(token)

    async def connect() -> Connection:
        chosen = settings_for(url, settings)
        if chosen.store.scheme in SERVER_SCHEMES:
            return await connect_http(chosen.store.path, checked or chosen.api_token, observer())
        if checked is not None:
            raise ConfigError("token: a store needs none; only a server asks for one")
        return await connect_embedded(chosen, observer(), duties=duties)

    return connect


async def connect_http(url: str, token: Secret, observer: Observer = NO_OBSERVER) -> Connection:
    """Reach a server, which must answer and know the token."""
    try:
        from flowfabric.client.connecting import connect
        from flowfabric.client.operations import http_transport
        from flowfabric.client.reads import persistent
    except ModuleNotFoundError as fault:
        raise ConfigError(
            f"url: a server is reached with the package {fault.name}: install flowfabric[http]"
        ) from None
    client = await connect(url, token)
    worker = WorkerCalls(persistent(http_transport(client.rest)), client.worker_reads)
    return Connection(
        Submitter(http_transport(client.rest), client.waiter),
        observed_worker(worker, observer),
        client.rest.close,
    )


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
    """The engine is somebody else's."""


def connection_on(engine: Engine) -> Connection:
    """The calls to an engine that somebody else opened and will close."""
    submitter = Submitter(engine.use_case, EngineWaiter(engine))
    worker = WorkerCalls(engine.use_case, EngineReads(engine))
    return Connection(submitter, worker, _nothing_to_close, engine)
