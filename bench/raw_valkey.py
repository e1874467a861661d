"""A Valkey server for a run, and the baseline of tails on it: bare XADD and XREAD, no engine."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from bench.measure import Cycle
from flowfabric.backend.valkey.connection import Login
from flowfabric.backend.valkey.node import Node
from tests.valkey_server import ValkeyServer

_FRAME = b"f" * 70


@contextmanager
def valkey_server(*options: str) -> Iterator[ValkeyServer]:
    """A server of one's own on a free port of the loopback, gone with its data afterwards."""
    server = ValkeyServer(*options)
    try:
        yield server
    finally:
        server.end()


@asynccontextmanager
async def raw_ways(server: ValkeyServer) -> AsyncIterator[Cycle]:
    """From an XADD until a reader that blocks on another connection has the entry."""
    server.clean()
    writer, reader = (Node("127.0.0.1", server.port, Login()) for _ in range(2))
    came = asyncio.Event()

    async def read() -> None:
        after: Any = "0-0"
        while True:
            found = _checked(await reader.run("XREAD", "BLOCK", 4_000, "STREAMS", "raw", after))
            if found:
                ((_, entries),) = found.items()
                after = entries[-1][0]
                came.set()

    async def append() -> None:
        came.clear()
        _checked(await writer.run("XADD", "raw", "*", "f", _FRAME))
        await came.wait()

    reading = asyncio.ensure_future(read())
    yield append
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    for node in (writer, reader):
        await node.close()


def _checked(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer
