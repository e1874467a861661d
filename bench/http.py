"""A server in a process of its own, and connections that cost its client as little as possible."""

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

_TICKS = os.sysconf("SC_CLK_TCK")
_START_S = 60


class Connection(asyncio.Protocol):
    """One keep-alive connection: one request at a time, answered by status and body."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._waiting: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Other event loops have transports of their own, of no common class.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result((int(head[9:12]), rest[:length]))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionError("the server closed the connection"))

    async def request(self, request: bytes) -> tuple[int, bytes]:
        assert self._transport is not None
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


def post(path: str, body: bytes) -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()


class Server:
    """A running server: where it listens, and what it has cost so far."""

    def __init__(self, port: int, pid: int) -> None:
        self.port = port
        self.pid = pid

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    async def connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(Connection, "127.0.0.1", self.port)
        return connection


@asynccontextmanager
async def server(
    url: str, *, under: tuple[str, ...] = (), **variables: str
) -> AsyncIterator[Server]:
    """A server on this store, for as long as the block lasts; `under` is the command of a tool that
    runs it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("FF_")},
        "FF_URL": url,
        "FF_LISTEN_ADDR": f"127.0.0.1:{port}",
        **variables,
    }
    process = await asyncio.create_subprocess_exec(
        *(*under, sys.executable, "-m", "flowfabric.server"),
        env=environment,
        stderr=asyncio.subprocess.DEVNULL,
    )
    running = Server(port, process.pid)
    try:
        await _ready(running)
        yield running
    finally:
        process.terminate()
        await process.wait()


async def _ready(running: Server) -> None:
    async with asyncio.timeout(_START_S):
        while True:
            try:
                connection = await running.connect()
            except OSError:
                await asyncio.sleep(0.05)
            else:
                connection.close()
                return
