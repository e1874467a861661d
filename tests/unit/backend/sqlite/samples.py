"""Records to store, and a database to store them in."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from typing import Any

from flowfabric.backend.reference.tables import RECORDS, Changes, Put, Table
from flowfabric.backend.sqlite.connection import connect
from flowfabric.backend.sqlite.schema import migrate
from flowfabric.backend.sqlite.tables import SqliteTables
from flowfabric.core.record import Record

NOW = 1_700_000_000_000
EVERY_BYTE = bytes(range(256))
# Every character that text may hold in one byte of UTF-8 or two; NUL is refused at the edge.
EVERY_CHARACTER = "".join(map(chr, range(1, 256)))


def execution_id(number: int, partition: int = 7) -> str:
    return f"{{fp:{partition}}}:00000000-0000-4000-8000-{number:012x}"


def a_record(number: int = 1, partition: int = 7, **fields: Any) -> Record:
    given: dict[str, Any] = {
        "execution_id": execution_id(number, partition),
        "namespace": "default",
        "lane": "main",
        "created_at": NOW,
        "rank": NOW,
    }
    return Record(**(given | fields))


@contextmanager
def a_database() -> Iterator[sqlite3.Connection]:
    """A connection to an empty database of the newest schema."""
    with closing(connect(":memory:")) as connection:
        connection.deserialize(_empty())
        connection.execute("PRAGMA foreign_keys = ON")
        yield connection


@cache
def _empty() -> bytes:
    """Made once, because the steps take longer than most tests."""
    with closing(connect(":memory:")) as connection:
        migrate(connection, ":memory:")
        return connection.serialize()


def store(tables: SqliteTables, *records: Record) -> None:
    """Insert records the tables do not hold yet."""
    puts = [Put(record.execution_id, record) for record in records]
    tables.write(Changes({RECORDS: puts}, []))


def put(tables: SqliteTables, table: Table[Any, Any], rows: dict[Any, Any]) -> None:
    """Write rows of any table but the records; None deletes one."""
    tables.write(Changes({table: [Put(key, value) for key, value in rows.items()]}, []))
