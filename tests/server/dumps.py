"""All that a store holds, as the database itself shows it, for comparing before and after."""

import sqlite3
from contextlib import closing

from psycopg import sql

from flowfabric.backend.valkey.keys import KINDS, PREFIX
from flowfabric.config import Settings
from tests.postgres_server import shared_postgres
from tests.server.driving import Served
from tests.valkey_server import ValkeyServer, array_of, shared_cluster, shared_server

_PARTITIONS = f"{PREFIX}{KINDS['partition']}:"
# How far the hints of a partition are, which a duty of each process looks after.
_HINTS = "hints"
Dump = frozenset[tuple[str, ...]]
# Rows by which processes find each other; they hold nothing of any tenant.
_OF_PROCESSES = ("listener",)


async def dump_of(served: Served, settings: Settings) -> Dump:
    """Every row or key with its content."""
    await served.application.services.engine.lanes.drain()
    match settings.store.scheme:
        case "sqlite":
            return _sqlite(settings.store.path)
        case "postgres":
            return _postgres()
        case _:
            cluster = settings.store.options.get("cluster") == "true"
            servers = shared_cluster().primaries if cluster else [shared_server()]
            return frozenset(row for server in servers for row in _valkey(server))


def _sqlite(path: str) -> Dump:
    with closing(sqlite3.connect(path)) as connection:
        return frozenset((line,) for line in connection.iterdump())


def _postgres() -> Dump:
    server = shared_postgres()
    found = server.run("SELECT tablename FROM pg_tables WHERE schemaname = 'flowfabric'")
    rows: set[tuple[str, ...]] = set()
    for (table,) in found:
        if table not in _OF_PROCESSES:
            query = sql.SQL("SELECT * FROM {}").format(sql.Identifier("flowfabric", table))
            rows |= {(table, *map(repr, row)) for row in server.run(query.as_string())}
    return frozenset(rows)


def _valkey(server: ValkeyServer) -> Dump:
    keys = array_of(server.run("KEYS", "*"))
    return frozenset((key, _value(server, key)) for key in keys)


def _value(server: ValkeyServer, key: str) -> str:
    if not key.startswith(_PARTITIONS):
        return repr(server.run("DUMP", key))
    found = array_of(server.run("HGETALL", key))
    return repr(
        {name: one for name, one in zip(found[::2], found[1::2], strict=True) if name != _HINTS}
    )
