"""Every store the conformance suite runs on. A further one joins by one entry in STORES."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from flowfabric.app import backend_of
from flowfabric.backend.base import Backend
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.partitions import PartitionCounts
from tests.valkey_server import shared_cluster, shared_server

SEARCHABLE = frozenset({"app.team", "app.case"})


Clock = Callable[[], int] | None


def _memory(counts: PartitionCounts, clock: Clock, _: Path) -> Backend:
    return backend_of(_settings(StoreUrl("memory"), counts), clock)


def _sqlite(counts: PartitionCounts, clock: Clock, directory: Path) -> Backend:
    store = StoreUrl("sqlite", str(directory / "conformance.db"))
    return backend_of(_settings(store, counts), clock)


def _valkey(counts: PartitionCounts, clock: Clock, _: Path) -> Backend:
    server = shared_server()
    server.clean()
    store = StoreUrl("valkey", host="127.0.0.1", port=server.port)
    return backend_of(_settings(store, counts), clock)


def _valkey_cluster(counts: PartitionCounts, clock: Clock, _: Path) -> Backend:
    cluster = shared_cluster()
    cluster.clean()
    port = cluster.primaries[0].port
    store = StoreUrl("valkey", options={"cluster": "true"}, host="127.0.0.1", port=port)
    return backend_of(_settings(store, counts), clock)


def _settings(store: StoreUrl, counts: PartitionCounts) -> Settings:
    return Settings(store=store, counts=counts, searchable_tags=SEARCHABLE)


Open = Callable[[Clock, Path], Backend]
_ALL = {
    "memory": _memory,
    "sqlite": _sqlite,
    "valkey": _valkey,
    "valkey-cluster": _valkey_cluster,
}
_CHOSEN = os.environ.get("FF_TEST_STORES", "memory,sqlite").split(",")


def stores_of(counts: PartitionCounts, names: Sequence[str] = _CHOSEN) -> dict[str, Open]:
    """Every store that was chosen, or those that are named, with so many partitions."""
    return {name: partial(_ALL[name], counts) for name in names}


STORES = stores_of(PartitionCounts())
