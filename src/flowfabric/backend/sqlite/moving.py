"""A SQLite file as the source or target of a move."""

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import product
from typing import Final, TypeVar

import msgspec

from flowfabric.backend.moving import Marker, closed_to_writes
from flowfabric.backend.sql.moving import SEALED, SqlMovable
from flowfabric.backend.sql.tables import SqlTables
from flowfabric.backend.sqlite import presence, schema
from flowfabric.backend.sqlite.connection import connect
from flowfabric.backend.sqlite.faults import error_for
from flowfabric.backend.sqlite.opening import Opened, Opening, open_file
from flowfabric.backend.sqlite.tables import SqliteTables
from flowfabric.errors import InvalidInput

T = TypeVar("T")

_CHANGES: Final = ("INSERT", "UPDATE", "DELETE")


class SqliteMovable(SqlMovable):
    family = "sqlite"

    def __init__(self, opening: Opening, *, is_new: bool) -> None:
        """`is_new`: the file may be made; otherwise its view of tags is left as it is."""
        super().__init__(opening.clock)
        self.where = f"sqlite {opening.path}"
        self._opening = msgspec.structs.replace(opening, readers=0)
        self._is_new = is_new
        self._undo = ExitStack()
        self._opened: Opened | None = None

    def _searchable(self) -> frozenset[str]:
        return self._opening.searchable

    def _open(self) -> None:
        with ExitStack() as undo:
            if not self._is_new:
                searchable = searchable_of(self._opening.path)
                self._opening = msgspec.structs.replace(self._opening, searchable=searchable)
            opened = open_file(self._opening, undo)
            undo.callback(presence.leave, opened.writing, opened.token)
            self._opened, self._undo = opened, undo.pop_all()

    def _close(self) -> None:
        self._undo.close()

    def _read(self, read: Callable[[SqlTables], T]) -> T:
        with self._transaction("BEGIN", "ROLLBACK") as tables:
            return read(tables)

    def _write(self, write: Callable[[SqlTables], None]) -> None:
        with self._transaction("BEGIN IMMEDIATE", "COMMIT") as tables:
            write(tables)

    @contextmanager
    def _transaction(self, begin: str, end: str) -> Iterator[SqliteTables]:
        assert self._opened is not None
        connection = self._opened.writing
        tables = SqliteTables(connection, self._opening.searchable)
        try:
            connection.execute(begin)
            tables.begin()
            yield tables
            connection.execute(end)
        except sqlite3.Error as fault:
            raise error_for(fault, self._opening.path) from fault
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def _put_seal(self, tables: SqlTables, marker: Marker) -> None:
        for table, change in product(SEALED, _CHANGES):
            tables.change(
                f"CREATE TRIGGER sealed_{table}_{change} BEFORE {change} ON {table}"
                f" BEGIN SELECT RAISE(ABORT, '{closed_to_writes(marker.other)}'); END",
                (),
            )

    def _drop_seal(self, tables: SqlTables) -> None:
        for table, change in product(SEALED, _CHANGES):
            tables.change(f"DROP TRIGGER IF EXISTS sealed_{table}_{change}", ())


def searchable_of(path: str) -> frozenset[str]:
    """The tags that a file is searched by; refuses one that is not there."""
    if not os.path.exists(path):
        raise InvalidInput(f"path: {path}: there is no such file")
    with closing(connect(path)) as connection:
        if not schema.check_ours(connection, path):
            raise InvalidInput(f"path: {path}: holds no deployment")
        return frozenset(row[0] for row in connection.execute("SELECT name FROM searchable"))
