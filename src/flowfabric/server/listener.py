"""Accepting connections, ending those that take too long, and stopping gracefully."""

import asyncio
import logging
import socket
import ssl
from typing import Final

from flowfabric.server.connection import INPUT_S, Application, Connection

_log = logging.getLogger("flowfabric.server")

BACKLOG: Final = 2_048
IDLE_S: Final = 75.0
# Thousands of requests begin and end between two sweeps, so none needs a timer.
SWEEP_S: Final = 1.0
# How long a request may take to end once it is cancelled.
CANCEL_S: Final = 1.0


class Listener:
    """Serves an ASGI application on a socket until it is stopped."""

    def __init__(self, application: Application, *, idle_s: float = IDLE_S) -> None:
        self.application = application
        self.idle_s = idle_s
        self.tasks: set[asyncio.Task[None]] = set()
        self._connections: set[Connection] = set()
        self._all_closed = asyncio.Event()
        self._all_closed.set()
        self._is_stopping = False

    async def start(self, listening: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        """Listen on a bound socket, of TCP or a unix socket; it is closed by `stop`."""
        loop = asyncio.get_running_loop()
        is_unix = listening.family == socket.AF_UNIX
        self._server = await (loop.create_unix_server if is_unix else loop.create_server)(
            self._connection,
            sock=listening,
            backlog=BACKLOG,
            ssl=tls,
            ssl_handshake_timeout=INPUT_S if tls else None,
        )
        self._sweep()

    def _connection(self) -> Connection:
        return Connection(self)

    def opened(self, connection: Connection) -> None:
        self._connections.add(connection)
        self._all_closed.clear()
        if self._is_stopping:
            connection.drain()

    def closed(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(SWEEP_S, self._sweep)
        now = loop.time()
        for connection in tuple(self._connections):
            connection.sweep(now)

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more and let the requests in progress end; after the grace period drop
        their connections and cancel them."""
        self._is_stopping = True
        self._server.close()
        for connection in tuple(self._connections):
            connection.drain()
        if not await self._have_ended(grace_s):
            _log.warning(
                "%d requests on %d connections still in progress after %g s; cancelled",
                len(self.tasks),
                len(self._connections),
                grace_s,
            )
            for connection in tuple(self._connections):
                connection.abort()
            for task in self.tasks:
                task.cancel()
            await self._have_ended(CANCEL_S)
        self._timer.cancel()

    async def _have_ended(self, seconds: float) -> bool:
        """Whether all connections and requests end within this time."""
        try:
            async with asyncio.timeout(seconds):
                await self._all_closed.wait()
                if self.tasks:
                    await asyncio.wait(self.tasks)
        except TimeoutError:
            return False
        return True
