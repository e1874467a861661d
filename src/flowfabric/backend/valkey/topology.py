"""Which server a key lives on."""

from collections.abc import Sequence
from typing import Protocol

from flowfabric.backend.valkey.faults import Redirect
from flowfabric.backend.valkey.node import Node
from flowfabric.errors import ProtocolFault


class Topology(Protocol):
    """A standalone server, or the primaries of a cluster."""

    @property
    def is_cluster(self) -> bool: ...

    async def open(self) -> None: ...

    def node_of(self, key: str) -> Node: ...

    def primaries(self) -> Sequence[Node]: ...

    async def refresh(self) -> None:
        """Ask the servers anew who has what."""
        ...

    def doubt(self) -> None:
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

    async def refresh(self) -> None:
        return None

    def doubt(self) -> None:
        return None

    def redirected(self, asked: Node, redirect: Redirect) -> Node:
        raise ProtocolFault("valkey: the server belongs to a cluster; use valkey+cluster://")

    async def close(self) -> None:
        await self._node.close()
