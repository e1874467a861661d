"""Running a server as a process: boot, serve, and drain when a signal asks for it."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
from collections.abc import Callable
from typing import Final

from flowfabric.config import Settings
from flowfabric.server.boot import booted, bound_socket
from flowfabric.server.http import Http
from flowfabric.server.listener import Listener

_log = logging.getLogger("flowfabric.server")

REQUESTS_END_S: Final = 35
# How long new requests are answered with 503 before connections close: a client with an answer goes
# elsewhere, one whose connection is cut cannot know what became of its request.
FAREWELL_S: Final = 0.25
# In parts, so that requests are answered in between even if the machine was suspended meanwhile.
_PARTS: Final = 10
_COLLECTED_EVERY: Final = (50_000, 20, 20)


async def serve(settings: Settings, on_ready: Callable[[str], None] | None = None) -> None:
    """Boot, serve until SIGINT or SIGTERM, drain. Nothing listens before boot is over."""
    async with booted(settings) as application:
        listening = bound_socket(settings)
        stopped_by = _stop_signal()
        host, port = listening.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        _raise_file_limit()
        _announce(application, address)
        _calm_collector()
        listener = Listener(application)
        await listener.start(listening)
        try:
            if on_ready is not None:
                on_ready(f"http://{address}")
            _log.info("%s: draining", await stopped_by)
            await _drain(application)
        finally:
            await listener.stop(REQUESTS_END_S)


def _stop_signal() -> asyncio.Future[str]:
    """The name of the first signal that asks to stop; further ones change nothing."""
    loop = asyncio.get_running_loop()
    received: asyncio.Future[str] = loop.create_future()

    def receive(name: str) -> None:
        if not received.done():
            received.set_result(name)

    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, receive, one.name)
    return received


async def _drain(application: Http) -> None:
    application.services.drain.begin()
    for _ in range(_PARTS):
        await asyncio.sleep(FAREWELL_S / _PARTS)


def _announce(application: Http, address: str) -> None:
    services = application.services
    described = services.engine.deps.store.backend.describe()
    counts = services.engine.deps.counts
    _log.info(
        "serving %s on http://%s: partitions %d/%d/%d, lanes %s, duties %s",
        described.family,
        address,
        counts.flow,
        counts.budget,
        counts.quota,
        ",".join(services.settings.lanes),
        ",".join(services.duties),
    )


def _calm_collector() -> None:
    """What boot made stays, so it need not be looked at again; requests leave little behind that
    the collector has to find, so it may come rarely. Both spare pauses in the middle of answers."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTED_EVERY)


def _raise_file_limit() -> None:
    """Every waiting client is an open file; take as many as the system lets us."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
