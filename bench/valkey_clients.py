"""Clients side by side: 64 callers of a function that does nothing, on one Valkey server; and how
long a caller waits when the server drops its connections.

`python -m bench.valkey_clients`; valkey-py and valkey-glide take part where they are installed.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from typing import Any

from bench.raw_valkey import valkey_server
from flowfabric.backend.valkey.connection import Login
from flowfabric.backend.valkey.functions import Functions
from flowfabric.backend.valkey.node import Node, Standalone
from tests.valkey_server import ValkeyServer

CALLERS = 64
CALLS = 400
KEY = "ff:p:{cfg}"
LIBRARY = """#!lua name=nothing
server.register_function('nothing', function() return 1 end)"""

Call = Callable[[], Awaitable[Any]]


@asynccontextmanager
async def ours(server: ValkeyServer) -> AsyncIterator[Call]:
    import libvalkey

    topology = Standalone(Node("127.0.0.1", server.port, Login()))
    functions = Functions(topology, test_mode=False)

    async def call() -> Any:
        return await functions.ask(KEY, libvalkey.pack_command(("FCALL", "nothing", 1, KEY, "x")))

    yield call
    await topology.close()


@asynccontextmanager
async def valkey_py(server: ValkeyServer) -> AsyncIterator[Call]:
    from valkey.asyncio import BlockingConnectionPool, Valkey

    pool = BlockingConnectionPool(
        host="127.0.0.1", port=server.port, max_connections=16, timeout=30, protocol=3
    )
    client: Any = Valkey(connection_pool=pool)
    yield lambda: client.fcall("nothing", 1, KEY, "x")
    await client.aclose()
    await pool.aclose()


@asynccontextmanager
async def glide(server: ValkeyServer) -> AsyncIterator[Call]:
    from glide import GlideClient, GlideClientConfiguration, NodeAddress  # type: ignore[import-not-found]

    config = GlideClientConfiguration([NodeAddress("127.0.0.1", server.port)])
    client = await GlideClient.create(config)
    yield lambda: client.fcall("nothing", [KEY], ["x"])
    await client.close()


async def rate(call: Call) -> tuple[float, float]:
    """Calls a second, and the client's CPU for each in microseconds."""

    async def caller(number: int) -> None:
        for _ in range(number):
            await call()

    await asyncio.gather(*(caller(20) for _ in range(CALLERS)))
    began, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(caller(CALLS) for _ in range(CALLERS)))
    calls = CALLERS * CALLS
    took, cpu = time.perf_counter() - began, time.process_time() - used
    return calls / took, cpu / calls * 1e6


async def reconnect(call: Call, server: ValkeyServer) -> str:
    """How long the first answer takes after all connections were cut."""
    server.run("CLIENT", "KILL", "TYPE", "normal")
    began = time.perf_counter()
    faults = 0
    while True:
        try:
            await call()
        except Exception:
            faults += 1
            continue
        return f"{(time.perf_counter() - began) * 1e3:.1f} ms, {faults} errors seen"


async def main() -> None:
    clients = {"ours": ours}
    if find_spec("valkey"):
        clients["valkey-py, 16 connections"] = valkey_py
    if find_spec("glide"):
        clients["valkey-glide"] = glide
    with valkey_server() as server:
        server.run("FUNCTION", "LOAD", "REPLACE", LIBRARY)
        for name, open_client in clients.items():
            async with open_client(server) as call:
                calls, cpu = await rate(call)
                again = await reconnect(call, server)
            print(f"{name}: {calls:,.0f} calls/s, {cpu:.0f} us of client CPU each; cut: {again}")


if __name__ == "__main__":
    asyncio.run(main())
