"""A replicated server whose primary is named by sentinels, and found anew when it has changed."""

import asyncio
import logging
from typing import Final

import libvalkey
import msgspec

from flowfabric.backend.single_flight import SingleFlight
from flowfabric.backend.valkey.connection import Connection, Login, OnPush, connect
from flowfabric.backend.valkey.faults import fault_of
from flowfabric.backend.valkey.node import Node, Standalone
from flowfabric.errors import FlowFabricError, ProtocolFault, TransportFault

_log = logging.getLogger("flowfabric.backend.valkey")
# So long a sentinel is waited for.
_ASK_S: Final = 1.0

Address = tuple[str, int]


class Sentinels(msgspec.Struct, frozen=True):
    """Where sentinels are, by what name they know the primary, and how they are entered."""

    places: tuple[Address, ...]
    name: str
    login: Login = Login()

    async def primary(self) -> Address:
        """Where the primary is, by the first sentinel that knows. All are asked at once: one that
        is away keeps nobody waiting."""
        asked = [asyncio.ensure_future(self._ask(place)) for place in self.places]
        faults: list[FlowFabricError] = []
        try:
            for answer in asyncio.as_completed(asked, timeout=_ASK_S):
                try:
                    found = await answer
                except FlowFabricError as fault:
                    faults.append(fault)
                    continue
                if found is not None:
                    return found
        except TimeoutError:
            faults.append(TransportFault(f"no answer within {_ASK_S:g} s"))
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise self._fault(faults)

    async def _ask(self, place: Address) -> Address | None:
        """What one sentinel says; None if it watches other primaries."""
        connection = await connect(*place, self.login)
        try:
            words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.name)
            answer = await connection.send(libvalkey.pack_command(words))
        finally:
            connection.abort()
            await connection.closed
        if isinstance(answer, libvalkey.ReplyError):
            raise fault_of(answer, f"sentinel {place[0]}:{place[1]}")
        return answer and (answer[0].decode(), int(answer[1]))

    def _fault(self, faults: list[FlowFabricError]) -> FlowFabricError:
        if not faults:
            return ProtocolFault(
                f"valkey: no sentinel knows a primary called {self.name!r}; write the name that "
                "SENTINEL MASTERS tells behind the sentinels in the URL"
            )
        if not any(fault.retryable for fault in faults):
            return faults[0]
        details = "; ".join(fault.detail for fault in faults)
        return TransportFault(f"valkey: no sentinel tells where {self.name!r} is: {details}")


class WatchedNode(Node):
    """The primary, wherever it is: whoever connects asks for it first."""

    def __init__(self, sentinels: Sentinels, login: Login) -> None:
        super().__init__(*sentinels.places[0], login)
        self._sentinels = sentinels
        self._connections: list[Connection] = []

    async def connect(self, on_push: OnPush | None = None) -> Connection:
        self.host, self.port = await self._sentinels.primary()
        connection = await super().connect(on_push)
        try:
            await self._check_role(connection)
        except BaseException:
            connection.abort()
            await connection.closed
            raise
        self._connections = [*(one for one in self._connections if one.is_open), connection]
        return connection

    async def look(self) -> None:
        """Leave a server that is the primary no longer, however it answers."""
        found = await self._sentinels.primary()
        if found == (self.host, self.port):
            return
        _log.warning("%s is the primary no longer, %s:%d is", self, *found)
        for connection in self._connections:
            connection.abort()

    async def _check_role(self, connection: Connection) -> None:
        """A replica takes a moment to become the primary."""
        answer = await connection.send(libvalkey.pack_command(("ROLE",)))
        if isinstance(answer, libvalkey.ReplyError):
            raise fault_of(answer, self.name)
        if answer[0] != b"master":
            raise TransportFault(f"{self.name}: it is not the primary yet")


class Watched(Standalone):
    """One server has everything, and sentinels say which."""

    def __init__(self, node: WatchedNode) -> None:
        super().__init__(node)
        self._refreshing = SingleFlight("asking the sentinels", node.look)
        node.on_silence = self.schedule_refresh

    async def refresh(self) -> None:
        await self._refreshing.get()

    def schedule_refresh(self) -> None:
        _ = self._refreshing.start()

    async def close(self) -> None:
        await self._refreshing.close()
        await super().close()
