"""Rewrites what is derived from the records of a file: columns, indexes, the view of tags.

The packed record is the truth. One that cannot be read is left alone.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import msgspec

from flowfabric.backend.sql import changes
from flowfabric.backend.sql.codecs import decode_record, encode
from flowfabric.backend.sql.tags import prepare_tags
from flowfabric.backend.sqlite import schema
from flowfabric.backend.sqlite.connection import connect
from flowfabric.backend.sqlite.faults import error_for
from flowfabric.backend.sqlite.tables import SqliteTables
from flowfabric.core.record import Record, due_at_of, rank_of
from flowfabric.core.views import COLUMNS, columns
from flowfabric.errors import FlowFabricError

_PAGE: Final = "SELECT seq, body FROM exec WHERE seq > ? ORDER BY seq LIMIT 1000"


def repair(path: str) -> None:
    """In one transaction; other processes may use the file meanwhile."""
    with closing(connect(path)) as connection:
        try:
            schema.check_ours(connection, path)
            connection.execute("BEGIN IMMEDIATE")
            with connection:
                connection.execute("REINDEX")
                _rewrite(connection)
                _refill_tags(connection)
        except sqlite3.Error as fault:
            raise error_for(fault, path) from fault


def damage_of(path: str) -> list[str]:
    """The damage that SQLite itself finds in the file."""
    with closing(connect(path)) as connection:
        try:
            schema.check_ours(connection, path)
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
        except sqlite3.Error as fault:
            raise error_for(fault, path) from fault
    return [] if found == ["ok"] else found


def _rewrite(connection: sqlite3.Connection) -> None:
    statement = changes.update(COLUMNS, "seq")
    for seq, record in _readable(connection):
        rank = rank_of(record.priority, record.created_at, record.rank_shift)
        right = msgspec.structs.replace(record, due_at=due_at_of(record), rank=rank)
        connection.execute(statement, (encode(right), *columns(right), seq))


def _readable(connection: sqlite3.Connection) -> Iterator[tuple[int, Record]]:
    last = -1
    while page := connection.execute(_PAGE, (last,)).fetchall():
        for seq, body in page:
            try:
                yield seq, decode_record(body)
            except (FlowFabricError, msgspec.DecodeError):
                continue
        last = page[-1][0]


def _refill_tags(connection: sqlite3.Connection) -> None:
    names = frozenset(row[0] for row in connection.execute("SELECT name FROM searchable"))
    connection.execute("DELETE FROM tag")
    connection.execute("DELETE FROM searchable")
    prepare_tags(SqliteTables(connection), names)
