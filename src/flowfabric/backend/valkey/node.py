"""One server: a shared connection that is made when it is needed and made again when it is lost;
and which server a key lives on."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

import libvalkey

from flowfabric.backend.valkey.connection import (
    SILENT_S,
    Connection,
    Late,
    Login,
    OnPush,
    connect,
)
from flowfabric.backend.valkey.faults import Redirect, fault_of
from flowfabric.errors import ProtocolFault, StoreTimeout, TransportFault

Word = str | bytes | int

_ASKING: Final = libvalkey.pack_command(("ASKING",))


class Node:
    def __init__(self, host: str, port: int, login: Login) -> None:
        self.host = host
        self.port = port
        self.login = login
        # Called while it does not answer.
        self.on_silence: Callable[[], None] | None = None
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._is_silent = False

    @property
    def name(self) -> str:
        """What messages about it begin with."""
        return f"valkey {self.host}:{self.port}"

    def __repr__(self) -> str:
        return f"Node({self.host}:{self.port})"

    async def run(self, *words: Word) -> Any:
        """The answer of one command; an error of the server is returned, not raised."""
        return await self.send(libvalkey.pack_command(words))

    async def command(self, *words: Word) -> Any:
        """The answer of one command; an error of the server is raised as ours."""
        answer = await self.run(*words)
        if isinstance(answer, libvalkey.ReplyError):
            raise fault_of(answer, self.name)
        return answer

    def send(self, request: bytes, late: Late | None = None) -> Awaitable[Any]:
        """The answer of a packed request; a lost connection is raised. Who says what to do with a
        late answer does not wait for a server that is silent."""
        connection = self._connection
        if connection is not None and connection.is_open:
            return connection.send(request, late)
        return self._send_connected(request, late)

    def post(self, request: bytes, late: Late | None = None) -> asyncio.Future[Any] | None:
        """Send right now, before anything that is sent later; None without a connection."""
        connection = self._connection
        return connection.send(request, late) if connection and connection.is_open else None

    async def _send_connected(self, request: bytes, late: Late | None) -> Any:
        connecting = self._connecting or self._begin()
        if late is not None:
            await asyncio.wait((connecting,), timeout=0 if self._is_silent else SILENT_S)
            if not connecting.done():
                self._is_silent = True
                raise StoreTimeout(f"{self.name}: no connection within {SILENT_S:g} s")
        return await (await self._made(connecting)).send(request, late)

    async def send_asking(self, request: bytes) -> Any:
        """Ask for a slot that is just being moved to this server."""
        connection = await self._connected()
        _, answer = await asyncio.gather(connection.send(_ASKING), connection.send(request))
        return answer

    async def _connected(self) -> Connection:
        connection = self._connection
        if connection is not None and connection.is_open:
            return connection
        return await self._made(self._connecting or self._begin())

    def _begin(self) -> asyncio.Task[Connection]:
        """One connection for all who wait for it, and if it cannot be made, for none of them."""
        connection = self._connection
        self._is_silent |= connection is not None and connection.has_timed_out
        self._connecting = asyncio.ensure_future(self._connect())
        self._connecting.add_done_callback(self._ended)
        return self._connecting

    async def _made(self, connecting: asyncio.Task[Connection]) -> Connection:
        await asyncio.wait((connecting,))
        if connecting.cancelled():
            raise TransportFault(f"{self.name}: the store was closed while it connected")
        return connecting.result()

    async def connect(self, on_push: OnPush | None = None) -> Connection:
        """A connection of the caller's own."""
        return await connect(self.host, self.port, self.login, on_push)

    async def _connect(self) -> Connection:
        connection = await self.connect()
        connection.on_silence = self.on_silence
        self._connection, self._is_silent = connection, False
        return connection

    def _ended(self, connecting: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if not connecting.cancelled():
            self._is_silent |= isinstance(connecting.exception(), StoreTimeout)

    async def close(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        connection, self._connection = self._connection, None
        if connection is not None and connection.is_open:
            connection.abort()
            await connection.closed


class Topology(Protocol):
    """A standalone server, or the primaries of a cluster."""

    @property
    def is_cluster(self) -> bool: ...

    async def open(self) -> None: ...

    def node_of(self, key: str) -> Node: ...

    def primaries(self) -> Sequence[Node]: ...

    def replicas(self) -> Sequence[tuple[str, int]]:
        """Host and port of those that may become primaries."""
        ...

    async def refresh(self) -> None:
        """Ask the servers anew who has what."""
        ...

    def schedule_refresh(self) -> None:
        """Have them asked, and wait for nobody."""
        ...

    def redirected(self, asked: Node, redirect: Redirect) -> Node:
        """The server a redirect names; a lasting one is remembered."""
        ...

    async def close(self) -> None: ...


class Standalone:
    """One server has everything."""

    is_cluster = False

    def __init__(self, node: Node) -> None:
        self._node = node

    async def open(self) -> None:
        return None

    def node_of(self, key: str) -> Node:
        return self._node

    def primaries(self) -> Sequence[Node]:
        return (self._node,)

    def replicas(self) -> Sequence[tuple[str, int]]:
        return ()

    async def refresh(self) -> None:
        return None

    def schedule_refresh(self) -> None:
        return None

    def redirected(self, asked: Node, redirect: Redirect) -> Node:
        raise ProtocolFault("valkey: the server belongs to a cluster; use valkey+cluster://")

    async def close(self) -> None:
        await self._node.close()
