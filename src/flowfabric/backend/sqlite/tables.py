"""The tables of the reference, kept in a SQLite file."""

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from flowfabric.backend.sql.layout import Row
from flowfabric.backend.sql.tables import SqlTables

_json = msgspec.json.Encoder().encode
_LAST: Final = "SELECT coalesce(max(seq), 0) FROM exec"
_LAST_LOGGED: Final = "SELECT seq FROM sqlite_sequence WHERE name = 'log'"


class SqliteTables(SqlTables):
    """After an error SQLite may have ended the transaction, so nothing more is sent."""

    def __init__(
        self, connection: sqlite3.Connection, searchable: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(searchable)
        self._connection = connection
        self._last_seq = 0

    def begin(self) -> None:
        super().begin()
        self._last_seq = 0

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        if self.fault is not None:
            raise self.fault
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as fault:
            self.fault = fault
            raise

    def change(self, statement: str, values: Sequence[Any]) -> int:
        if self.fault is not None:
            raise self.fault
        try:
            return self._connection.execute(statement, values).rowcount
        except sqlite3.Error as fault:
            self.fault = fault
            raise

    def change_many(self, statement: str, rows: list[Row]) -> None:
        if self.fault is not None:
            raise self.fault
        self._connection.executemany(statement, rows)

    def listed(self, values: Sequence[Any]) -> str:
        return _json(values).decode()

    def number(self, execution_id: str) -> int:
        if not self._last_seq:
            self._last_seq = int(self.rows(_LAST)[0][0])
        self._last_seq += 1
        self._seqs[execution_id] = self._last_seq
        return self._last_seq

    def last_log_number(self) -> int:
        numbers = self.rows(_LAST_LOGGED)
        return int(numbers[0][0]) if numbers else 0
