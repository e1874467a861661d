"""One server: a shared connection that is made when it is needed and made again when it is lost."""

import asyncio
from typing import Any, Final

import libvalkey

from flowfabric.backend.valkey.connection import Connection, Login, connect
from flowfabric.backend.valkey.faults import Unanswered
from flowfabric.errors import TransportFault

_TRIES: Final = 4
_FIRST_PAUSE_S: Final = 0.05

Word = str | bytes | int


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

    async def send(self, request: bytes) -> Any:
        """The answer of a packed request. It is repeated when the connection is lost: whatever we
        send may safely be done twice."""
        pause = _FIRST_PAUSE_S
        for left in range(_TRIES - 1, -1, -1):
            connection = self._connection
            if connection is None or not connection.is_open:
                connection = await self._connected()
            try:
                return await connection.send(request)
            except Unanswered as fault:
                if not left:
                    raise TransportFault(f"valkey: {fault}") from fault
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError

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
