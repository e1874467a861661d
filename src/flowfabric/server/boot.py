"""Start and stop: from settings to an application over an open store, and back."""

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from ipaddress import ip_address
from typing import Final

import msgspec

from flowfabric.app import backend_of, close_engine, duties_of, engine_over
from flowfabric.backend.base import CONFIG_TOPIC, Backend
from flowfabric.config import Address, Settings, StoreUrl
from flowfabric.duties.loop import Duties, DutyLoop
from flowfabric.duties.maintenance import TOKENS_S, TokenWatch
from flowfabric.engine import Engine
from flowfabric.errors import FlowFabricError, InvalidInput
from flowfabric.server.call import Services
from flowfabric.server.http import Http
from flowfabric.server.listener import BACKLOG
from flowfabric.server.routes import ROUTES
from flowfabric.telemetry.metrics import Metrics

_log = logging.getLogger("flowfabric.server")

# Of the metrics page: lanes that are counted, and how long the store may take.
_MAX_LANES: Final = 64
_READ_S: Final = 2.0


def check_exposure(settings: Settings) -> None:
    """Without a token every caller may do everything, so only callers on this host are accepted."""
    if settings.tokens or settings.allow_insecure or _is_loopback(settings.listen.host):
        return
    raise InvalidInput(
        f"invalid value for FF_LISTEN_ADDR: {settings.listen} is reachable from elsewhere and no"
        " token is set; set FF_API_TOKEN, or FF_ALLOW_INSECURE=1 at your own risk"
    )


def _is_loopback(host: str) -> bool:
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
    """The application over an open store, its duties running; everything is closed at the end.

    A given backend is opened and closed here too; given metrics are served.
    """
    check_exposure(settings)
    _log.info("opening %s", settings.store.where)
    observer = metrics or Metrics()
    engine = await engine_over(backend or backend_of(settings), settings, observer)
    duties = duties_of(engine, settings, observer, _token_watch(engine, observer))
    try:
        await engine.api_tokens.refresh()
        services = Services(engine, settings, observer)
        services.duties = tuple(loop.duty.name for loop in duties.loops)
        if settings.serves_metrics:
            services.exposition = partial(_render_metrics, observer, services)
        application = Http(services, ROUTES)
        duties.start()
        _warn(settings, has_tokens=services.tokens.are_needed)
        yield application
    finally:
        await _close(engine, duties, observer)


async def _close(engine: Engine, duties: Duties, observer: Metrics) -> None:
    """End reads, background work and duties, each within its time; then close the store. A timer
    of another process finishes what was interrupted."""
    steps: tuple[tuple[str, Callable[[], Awaitable[bool]]], ...] = (
        ("stream reads", engine.streams.close),
        ("background work", engine.drain),
        ("duties", duties.stop),
    )
    for name, step in steps:
        if not await step():
            observer.overran_shutdown()
            _log.warning("shutdown: %s did not end in time and was abandoned", name)
    await close_engine(engine)


def bound_socket(settings: Settings) -> socket.socket:
    """The socket to serve on; opened last, when requests can be served."""
    host, port = settings.listen.host, settings.listen.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY only if the protocol is named; without it, a client that delays its
    # acknowledgements delays answers.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except BaseException:
        listening.close()
        raise
    return listening


def _token_watch(engine: Engine, observer: Metrics) -> DutyLoop:
    changed = engine.deps.store.backend.notifier().subscribe(CONFIG_TOPIC)
    return DutyLoop(TokenWatch(engine), TOKENS_S, observer, changed)


def _warn(settings: Settings, *, has_tokens: bool) -> None:
    if has_tokens:
        return
    address = str(settings.listen)
    _log.warning(
        "no API token: admin routes, rotation of the signing key among them, are open",
        extra={"listen_addr": address},
    )
    _log.warning(
        "no API token: /pending-waitpoints, /result and /input are readable without one",
        extra={"listen_addr": address},
    )
    if "*" in settings.cors_origins:
        _log.warning("FF_CORS_ORIGINS=*: every web page may read from this server; name origins")


async def _render_metrics(metrics: Metrics, services: Services) -> bytes:
    """The page. Gauges of a store that does not answer keep their last values."""
    engine = services.engine
    metrics.show_pools(engine.streams.permits.taken, services.sse.taken, len(services.claim_waits))
    with contextlib.suppress(FlowFabricError, TimeoutError):
        async with asyncio.timeout(_READ_S):
            await _read_gauges(metrics, engine)
    return metrics.render()


async def _read_gauges(metrics: Metrics, engine: Engine) -> None:
    lanes = await engine.lanes.list_all(_MAX_LANES)
    counts = await asyncio.gather(*(engine.reads.count(*name) for name in lanes))
    depths: Counter[tuple[str, str]] = Counter()
    for (_, lane), states in zip(lanes, counts, strict=True):
        for state, n in states.items():
            depths[lane, state] += n
    namespaces = sorted({namespace for namespace, _ in lanes})
    live = await asyncio.gather(*(engine.workers.live(one) for one in namespaces))
    metrics.show_queues((lane, state, n) for (lane, state), n in depths.items())
    metrics.show_workers(zip(namespaces, map(len, live), strict=True))


def dev(base: Settings | None = None) -> Settings:
    """For trying things out: everything in memory, any free port of this host, no token."""
    return msgspec.structs.replace(
        base or Settings(),
        store=StoreUrl("memory"),
        listen=Address("127.0.0.1", 0),
        tokens=(),
    )
