"""One server: a shared connection that is made when it is needed and made again when it is lost."""

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

import libvalkey

from flowfabric.backend.valkey.connection import Connection, Login, connect

Word = str | bytes | int

_ASKING: Final = libvalkey.pack_command(("ASKING",))


class Node:
    def __init__(self, host: str, port: int, login: Login) -> None:
        self.host = host
        self.port = port
        self.login = login
        self._connection: Connection | None = None
        self._connecting: asyncio.Lock = asyncio.Lock()

    def __repr__(self) -> str:
        return f"Node({self.host}:{self.port})"

    async def run(self, *words: Word) -> Any:
        """The answer of one command; an error of the server is returned, not raised."""
        return await self.send(libvalkey.pack_command(words))

    def send(self, request: bytes) -> Awaitable[Any]:
        """The answer of a packed request; a lost connection is raised."""
        return self.post(request) or self._send_connected(request)

    def post(self, request: bytes) -> asyncio.Future[Any] | None:
        """Send right now, before anything that is sent later; None without a connection."""
        connection = self._connection
        return connection.send(request) if connection and connection.is_open else None

    async def _send_connected(self, request: bytes) -> Any:
        return await (await self._connected()).send(request)

    async def send_asking(self, request: bytes) -> Any:
        """Ask for a slot that is just being moved to this server."""
        connection = await self._connected()
        _, answer = await asyncio.gather(connection.send(_ASKING), connection.send(request))
        return answer

    async def _connected(self) -> Connection:
        async with self._connecting:
            connection = self._connection
            if connection is None or not connection.is_open:
                connection = await connect(self.host, self.port, self.login)
                self._connection = connection
            return connection

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.is_open:
            connection.close()
            await connection.closed
