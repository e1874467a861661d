"""Every store that tests run on. A further one joins by one entry in _URLS."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from flowfabric.app import backend_of
from flowfabric.backend.base import Backend
from flowfabric.backend.sqlite import schema
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.ids import PartitionCounts
from tests.pgbouncer import pooler_of
from tests.postgres_server import shared_postgres
from tests.rotation import on_stores
from tests.valkey_server import shared_cluster, shared_server

SEARCHABLE = frozenset({"app.team", "app.case"})
SQLITE_FILE = "store.db"

Clock = Callable[[], int] | None
Open = Callable[[Clock, Path], Backend]


def _memory(_: Path) -> str:
    return "memory://"


def _sqlite(directory: Path) -> str:
    file = directory / SQLITE_FILE
    if not file.exists():
        file.touch(mode=0o600)
        file.write_bytes(_empty_file())
    return f"sqlite:///{file}"


@cache
def _empty_file() -> bytes:
    """A file with our schema. Making one waits for the disk longer than most tests take."""
    with TemporaryDirectory() as directory:
        path = str(Path(directory) / SQLITE_FILE)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            schema.migrate(connection, path)
        return Path(path).read_bytes()


def _valkey(_: Path) -> str:
    server = shared_server()
    server.clean()
    return f"valkey://127.0.0.1:{server.port}"


def _valkey_cluster(_: Path) -> str:
    cluster = shared_cluster()
    cluster.clean()
    return f"valkey://127.0.0.1:{cluster.primaries[0].port}?cluster=true"


def _postgres(_: Path) -> str:
    server = shared_postgres()
    server.clean()
    return server.address


def _postgres_pooled(_: Path) -> str:
    server = shared_postgres()
    server.clean()
    return f"{pooler_of(server).address}?pooler=transaction&notify=off"


_URLS: Final = {
    "memory": _memory,
    "postgres": _postgres,
    "postgres-pooled": _postgres_pooled,
    "sqlite": _sqlite,
    "valkey": _valkey,
    "valkey-cluster": _valkey_cluster,
}


def url_of(name: str, directory: Path) -> str:
    """The address of an empty store: a file in the directory, or a server that was emptied."""
    return _URLS[name](directory)


def _opened(name: str, counts: PartitionCounts, clock: Clock, directory: Path) -> Backend:
    store = parse_store_url(url_of(name, directory))
    return backend_of(Settings(store=store, counts=counts, searchable_tags=SEARCHABLE), clock)


def stores_of(counts: PartitionCounts) -> dict[str, Open]:
    """Every store, with so many partitions."""
    return {name: partial(_opened, name, counts) for name in _URLS}


STORES: Final = stores_of(PartitionCounts())
CONFORMANCE: Final = on_stores(
    ["memory", "sqlite", "postgres", "valkey"], ["valkey-cluster"], ["postgres-pooled"]
)
# For what takes long on a store and is mostly a matter of the rules.
ROTATING: Final = on_stores(["memory"], ["sqlite", "postgres", "valkey", "valkey-cluster"])
# Those that are compared with the reference, which runs in memory.
COMPARED: Final = on_stores(["sqlite", "postgres", "valkey"], ["valkey-cluster"])
