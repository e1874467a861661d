"""Valkey: speed, and scale over a cluster. Functions apply the plans inside the server."""

from flowfabric.backend.valkey.backend import Opening, ValkeyBackend, standalone
from flowfabric.backend.valkey.boot import Demands
from flowfabric.backend.valkey.cluster.backend import ClusterBackend
from flowfabric.backend.valkey.cluster.topology import Cluster
from flowfabric.backend.valkey.connection import Login
from flowfabric.backend.valkey.moving import ValkeyMovable
from flowfabric.backend.valkey.node import Node
from flowfabric.backend.valkey.sentinels import Sentinels, WatchedNode

__all__ = [
    "Demands",
    "Login",
    "Opening",
    "Sentinels",
    "ValkeyBackend",
    "ValkeyMovable",
    "open_valkey",
]


def open_valkey(
    address: tuple[str, int] | Sentinels, login: Login, opening: Opening, *, cluster: bool = False
) -> ValkeyBackend:
    """A store on one server, on the one that sentinels name, or on the cluster this server belongs
    to. `prepare` connects, checks the servers and loads the functions."""
    if isinstance(address, Sentinels):
        return standalone(WatchedNode(address, login), opening)
    seed = Node(*address, login)
    return ClusterBackend(Cluster(seed), opening) if cluster else standalone(seed, opening)
