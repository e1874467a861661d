"""A listener on an event loop of its own, in a thread, and clients that write raw bytes to it."""

import asyncio
import contextlib
import re
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import uvloop

from flowfabric.server.connection import Application
from flowfabric.server.listener import IDLE_S, Listener

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Booting = Callable[[], AbstractAsyncContextManager[Application]]

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


def local_socket() -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.bind(("127.0.0.1", 0))
    return bound


class Listening:
    """Whatever goes wrong in the thread is raised by `start` or `stop`."""

    def __init__(
        self,
        booting: Booting,
        *,
        loop: str = "uvloop",
        idle_s: float = IDLE_S,
        bound: socket.socket | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._booting = booting
        self._loop_factory = LOOPS[loop]
        self._idle_s = idle_s
        self._socket = bound or local_socket()
        self._tls = tls
        self._ready = threading.Event()
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._stopping: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.grace_s = 5.0
        self.address = self._socket.getsockname()

    async def start(self) -> None:
        self._thread.start()
        await asyncio.to_thread(self._ready.wait, 30)
        if self._fault is not None:
            raise self._fault

    def begin_stop(self) -> None:
        if self._loop is not None and self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)

    async def stop(self) -> None:
        if self._thread.is_alive():
            self.begin_stop()
        await asyncio.to_thread(self._thread.join, 30)
        assert not self._thread.is_alive()
        if self._fault is not None:
            raise self._fault

    async def connect(self) -> Ends:
        return await asyncio.open_connection(*self.address)

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=self._loop_factory) as runner:
                runner.run(self._serve())
        except BaseException as fault:
            self._fault = fault
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        async with self._booting() as application:
            listener = Listener(application, idle_s=self._idle_s)
            await listener.start(self._socket, self._tls)
            self._ready.set()
            await self._stopping.wait()
            await listener.stop(self.grace_s)


@asynccontextmanager
async def listening(
    booting: Booting,
    *,
    loop: str = "uvloop",
    idle_s: float = IDLE_S,
    bound: socket.socket | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Listening]:
    server = Listening(booting, loop=loop, idle_s=idle_s, bound=bound, tls=tls)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def ready(application: Application) -> Booting:
    """An application that needs no boot."""
    return lambda: contextlib.nullcontext(application)


async def said_until_closed(reader: asyncio.StreamReader) -> bytes:
    """Everything the server sends before it closes or resets the connection."""
    said = b""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(30):
            while data := await reader.read(65_536):
                said += data
    return said


async def converse(server: Listening, sent: bytes) -> bytes:
    """Everything the server answers until it closes the connection."""
    reader, writer = await server.connect()
    writer.write(sent)
    said = await said_until_closed(reader)
    writer.transport.abort()
    return said


def statuses(said: bytes) -> list[int]:
    return [int(status) for status in _STATUS.findall(said)]
