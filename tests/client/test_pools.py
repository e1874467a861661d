"""Connections to one server: as many as are waited on together, and used again."""

import asyncio
from typing import Any

import httpx

from flowfabric.client.rest import Pools

CROWD = 50
ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


class Slow:
    """A server that answers once a number of requests wait."""

    def __init__(self) -> None:
        self.connections: list[asyncio.Task[Any]] = []
        self.everybody = asyncio.Barrier(1)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.append(task)
        while await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            await self.everybody.wait()
            writer.write(ANSWER)
            await writer.drain()
        writer.close()
        await writer.wait_closed()


async def test_a_crowd_waits_together_and_leaves_connections_to_the_next() -> None:
    slow = Slow()
    server = await asyncio.start_server(slow.serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    async with server:
        async with httpx.AsyncClient(transport=Pools(), trust_env=False, timeout=30) as client:
            for _ in range(3):
                await client.get(url)
            assert len(slow.connections) == 1
            slow.everybody = asyncio.Barrier(CROWD)
            answers = await asyncio.gather(*(client.get(url) for _ in range(CROWD)))
            assert {one.status_code for one in answers} == {204}
            assert len(slow.connections) == CROWD
            slow.everybody = asyncio.Barrier(1)
            for _ in range(3):
                await client.get(url)
            assert len(slow.connections) == CROWD
        # The client has closed all of them; what is left of them must not outlive the loop.
        await asyncio.gather(*slow.connections)
