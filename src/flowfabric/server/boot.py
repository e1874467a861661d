"""From settings to an application over an open store, and back, each step in its order."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Final

from flowfabric.app import duties_of, open_engine
from flowfabric.config import Settings
from flowfabric.engine import Engine
from flowfabric.errors import InvalidInput
from flowfabric.server.http import Http
from flowfabric.server.routes import ROUTES
from flowfabric.server.services import Services

_log = logging.getLogger("flowfabric.server")

DRAIN_S: Final = 15.0


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
async def booted(settings: Settings) -> AsyncIterator[Http]:
    """The application over an open store, its duties running; closed in order at the end."""
    check_exposure(settings)
    engine = await open_engine(settings)
    duties = duties_of(engine, settings)
    try:
        application = Http(Services(engine, settings), ROUTES)
        duties.start()
        _warn(settings)
        yield application
    finally:
        await _drain(engine)
        await duties.stop()
        await engine.close()
        await engine.deps.store.backend.close()


def bound_socket(settings: Settings) -> socket.socket:
    """The socket to serve on; opened last, when everything behind it stands."""
    host, port = settings.listen.host, settings.listen.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except BaseException:
        listening.close()
        raise
    return listening


async def _drain(engine: Engine) -> None:
    """Let reads end and cascades finish; what is left over is found by a timer elsewhere."""
    try:
        async with asyncio.timeout(DRAIN_S):
            await engine.settling.drain()
    except TimeoutError:
        _log.warning("cascades still under way after %g s; a timer goes on with them", DRAIN_S)


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
