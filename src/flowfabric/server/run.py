"""Running a server as a process: uvicorn under our signals and our drain."""

import asyncio
import contextlib
import gc
import logging
import resource
import signal
from collections.abc import Callable, Iterator
from typing import Final

import uvicorn

from flowfabric.config import Settings
from flowfabric.server.boot import booted, bound_socket
from flowfabric.server.http import Http
from flowfabric.server.protocol import PatientProtocol

_log = logging.getLogger("flowfabric.server")

REQUESTS_END_S: Final = 35
# How long requests are still taken to be answered that nothing is taken any more: a client that is
# told so goes elsewhere, one whose connection is cut cannot know what became of its request.
FAREWELL_S: Final = 0.25
# In parts, for a machine that stands still for longer must not have the clients cut off.
_PARTS: Final = 10
_KEEP_ALIVE_S: Final = 75
_COLLECTED_EVERY: Final = (50_000, 20, 20)


class _Uvicorn(uvicorn.Server):
    """Signals are ours: uvicorn must not take them."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: Settings, on_ready: Callable[[str], None] | None = None) -> None:
    """Boot, serve until SIGINT or SIGTERM, drain. Nothing listens before boot is over."""
    async with booted(settings) as application:
        listening = bound_socket(settings)
        host, port = listening.getsockname()[:2]
        server = _uvicorn(application)
        _stop_on_signals(application, server)
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        _announce(application, address)
        _calm_collector()
        if on_ready is not None:
            on_ready(f"http://{address}")
        await server.serve(sockets=[listening])


def _uvicorn(application: Http) -> _Uvicorn:
    _raise_file_limit()
    return _Uvicorn(
        uvicorn.Config(
            application,
            http=PatientProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=REQUESTS_END_S,
        )
    )


def _stop_on_signals(application: Http, server: uvicorn.Server) -> None:
    def stop(name: str) -> None:
        _log.info("%s: draining", name)
        application.services.drain.begin()
        leave(_PARTS)

    def leave(parts: int) -> None:
        if parts:
            loop.call_later(FAREWELL_S / _PARTS, leave, parts - 1)
        else:
            server.should_exit = True

    loop = asyncio.get_running_loop()
    for one in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(one, stop, one.name)


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
