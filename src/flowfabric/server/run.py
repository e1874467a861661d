"""The server process: boot, serve, and drain on SIGINT or SIGTERM."""

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
from flowfabric.server.listener import CANCEL_S, Listener

_log = logging.getLogger("flowfabric.server")

REQUESTS_END_S: Final = 35
# How long new requests are answered with 503 before connections close: a client that gets an answer
# tries another server, one whose connection breaks cannot know whether its request was done.
DRAIN_S: Final = 0.25
# Slept in parts, so that requests are answered in between even after the machine was suspended.
_PARTS: Final = 10
_GC_THRESHOLDS: Final = (50_000, 20, 20)


async def serve(settings: Settings, on_ready: Callable[[str], None] | None = None) -> None:
    """Boot, serve until SIGINT or SIGTERM, drain. Nothing listens before boot is over."""
    async with booted(settings) as application:
        listening = bound_socket(settings)
        stopped_by = _stop_signal()
        host, port = listening.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        _raise_file_limit()
        _announce(application, address)
        _tune_gc()
        listener = Listener(application)
        await listener.start(listening)
        try:
            if on_ready is not None:
                on_ready(f"http://{address}")
            _log.info("%s: draining", await stopped_by)
            await _drain(application)
        finally:
            await listener.stop(REQUESTS_END_S - DRAIN_S - CANCEL_S)


def _stop_signal() -> asyncio.Future[str]:
    """The name of the first signal to stop; further ones are ignored."""
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
        await asyncio.sleep(DRAIN_S / _PARTS)


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


def _tune_gc() -> None:
    """Objects of boot live as long as the process, so they are frozen; requests leave few reference
    cycles, so collections may be rare. Both avoid pauses while requests are served."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


def _raise_file_limit() -> None:
    """Every waiting client is an open file: raise the soft limit to the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
