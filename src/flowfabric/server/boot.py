"""From settings to an application over an open store, and back, each step in its order."""

import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from ipaddress import ip_address

from flowfabric.app import backend_of, close_engine, duties_of, engine_over
from flowfabric.backend.base import Backend
from flowfabric.config import Settings
from flowfabric.duties.loop import Duties
from flowfabric.engine import Engine
from flowfabric.errors import InvalidInput
from flowfabric.server.exposition import Exposition
from flowfabric.server.http import Http
from flowfabric.server.listener import BACKLOG
from flowfabric.server.routes import ROUTES
from flowfabric.server.services import Services
from flowfabric.telemetry.metrics import Metrics

_log = logging.getLogger("flowfabric.server")


def check_exposure(settings: Settings) -> None:
    """Whoever reaches a server without a token may do everything, so only this host may."""
    if settings.tokens or settings.allow_insecure or is_loopback(settings.listen.host):
        return
    raise InvalidInput(
        f"invalid value for FF_LISTEN_ADDR: {settings.listen} is reachable from elsewhere and no"
        " token is set; set FF_API_TOKEN, or FF_ALLOW_INSECURE=1 at your own risk"
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@contextlib.asynccontextmanager
async def booted(
    settings: Settings, backend: Backend | None = None, metrics: Metrics | None = None
) -> AsyncIterator[Http]:
    """The application over an open store, its duties running; closed in order at the end.

    A store of the caller's own is opened and closed here too; its metrics are served here.
    """
    check_exposure(settings)
    _log.info("opening %s", settings.store.where)
    observer = metrics or Metrics()
    engine = await engine_over(backend or backend_of(settings), settings, observer)
    duties = duties_of(engine, settings, observer)
    try:
        services = Services(engine, settings, observer)
        services.duties = tuple(loop.duty.name for loop in duties.loops)
        if settings.serves_metrics:
            services.exposition = Exposition(observer, services).render
        application = Http(services, ROUTES)
        duties.start()
        _warn(settings)
        yield application
    finally:
        await _close(engine, duties, observer)


async def _close(engine: Engine, duties: Duties, observer: Metrics) -> None:
    """Reads end, cascades finish, duties stop, each within its time; then the store is closed.
    What is left over is found by a timer elsewhere."""
    steps: tuple[tuple[str, Callable[[], Awaitable[bool]]], ...] = (
        ("stream reads", engine.streams.close),
        ("background work", engine.drain),
        ("duties", duties.stop),
    )
    for name, step in steps:
        if not await step():
            observer.overran_shutdown()
            _log.warning("%s did not end in time; left behind", name)
    await close_engine(engine)


def bound_socket(settings: Settings) -> socket.socket:
    """The socket to serve on; opened last, when everything behind it stands."""
    host, port = settings.listen.host, settings.listen.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sends answers at once; without, a peer that delays its
    # acknowledgements delays them too.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _warn(settings: Settings) -> None:
    if settings.tokens:
        return
    address = str(settings.listen)
    _log.warning(
        "no API token: admin routes, rotation of the signing key among them, are open",
        extra={"listen_addr": address},
    )
    _log.warning(
        "no API token: /pending-waitpoints, /result and /input show data to whoever asks",
        extra={"listen_addr": address},
    )
    if "*" in settings.cors_origins:
        _log.warning("FF_CORS_ORIGINS=*: every web page may read from this server")
