"""What one transaction knows on one connection: the numbers of executions, and whether the file
has failed."""

import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from flowfabric.backend.sqlite.codecs import decode_record
from flowfabric.backend.sqlite.layout import Layout, Row
from flowfabric.core.record import Record

_OWNER: Final = "SELECT seq FROM exec WHERE execution_id = ?"
_LAST: Final = "SELECT coalesce(max(seq), 0) FROM exec"


class Session:
    """Other processes write too, so `begin` forgets everything at the start of a transaction.

    `fault` keeps the first error of the file: an item that fails is answered and forgotten, but a
    transaction in which the file failed must not be committed. SQLite may even have ended it, so
    nothing more is sent.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.fault: Exception | None = None
        self._connection = connection
        self._seqs: dict[str, int] = {}
        self._last_seq = 0

    def begin(self) -> None:
        self.fault = None
        self._seqs = {}
        self._last_seq = 0

    # ---- statements

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        if self.fault is not None:
            raise self.fault
        try:
            return self._connection.execute(statement, values).fetchall()
        except sqlite3.Error as fault:
            self.fault = fault
            raise

    def change(self, statement: str, values: Sequence[Any]) -> int:
        """Run one statement that writes; how many rows it changed."""
        if self.fault is not None:
            raise self.fault
        try:
            return self._connection.execute(statement, values).rowcount
        except sqlite3.Error as fault:
            self.fault = fault
            raise

    def change_many(self, statement: str, rows: list[Row]) -> None:
        """Run a statement for many rows. Only `write` may call it: it remembers any error."""
        if self.fault is not None:
            raise self.fault
        self._connection.executemany(statement, rows)

    # ---- executions

    def records(self, statement: str, values: Sequence[Any]) -> list[Record]:
        """Records of a statement that selects number, id and body."""
        found: list[Record] = []
        seqs = self._seqs
        for seq, execution_id, body in self.rows(statement, values):
            seqs[execution_id] = seq
            found.append(decode_record(body))
        return found

    def seq(self, execution_id: str) -> int | None:
        """The number of an execution, None when there is no such execution."""
        seq = self._seqs.get(execution_id)
        if seq is None:
            rows = self.rows(_OWNER, (execution_id,))
            if not rows:
                return None
            seq = self._seqs[execution_id] = int(rows[0][0])
        return seq

    def number(self, execution_id: str) -> int:
        """Give a new execution its number."""
        if not self._last_seq:
            self._last_seq = int(self.rows(_LAST)[0][0])
        self._last_seq += 1
        self._seqs[execution_id] = self._last_seq
        return self._last_seq

    def forget(self, execution_id: str) -> None:
        self._seqs.pop(execution_id, None)

    def place(self, layout: Layout, key: Any) -> Row | None:
        """The stored form of a key or of its beginning; None when its execution does not exist."""
        if layout.is_owned:
            seq = self._seqs.get(key[0]) or self.seq(key[0])
            return None if seq is None else (seq, *key[1:])
        return key if type(key) is tuple else (key,)
