"""Valkey: speed, and scale over a cluster. Functions apply the plans inside the server."""

from flowfabric.backend.valkey.backend import Opening, ValkeyBackend
from flowfabric.backend.valkey.boot import Demands
from flowfabric.backend.valkey.connection import Login
from flowfabric.backend.valkey.node import Node
from flowfabric.backend.valkey.topology import Standalone
from flowfabric.errors import Unavailable

__all__ = ["Demands", "Login", "Opening", "open_valkey"]


def open_valkey(
    address: tuple[str, int], login: Login, opening: Opening, *, cluster: bool = False
) -> ValkeyBackend:
    """A store on one server, or on the cluster this server belongs to. `prepare` connects, checks
    the servers and loads the functions."""
    if cluster:
        raise Unavailable("valkey: clusters")
    return ValkeyBackend(Standalone(Node(*address, login)), opening)
