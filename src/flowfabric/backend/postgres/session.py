"""One transaction on one connection: statements, and writes that wait to be sent along."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from flowfabric.backend.postgres.connection import COMMIT, ROLLBACK, Port, Statement
from flowfabric.backend.postgres.dialect import for_many
from flowfabric.backend.postgres.faults import DatabaseFault
from flowfabric.backend.postgres.layout import POSTGRES_LAYOUTS
from flowfabric.backend.reference import limit_tables
from flowfabric.backend.reference.tables import (
    CONFIG,
    FAIRNESS,
    FLOWS,
    KEYS,
    WORKERS,
    Table,
)
from flowfabric.backend.sql.layout import Layout, Row
from flowfabric.backend.sql.tables import SqlTables

# Rows that others may change unless they are locked. Every other row belongs to one of these.
ROOTS: Final[frozenset[Table[Any, Any]]] = frozenset(
    {FLOWS, KEYS, FAIRNESS, WORKERS, CONFIG, limit_tables.BUDGETS, limit_tables.GATES}
)
_BLOCK: Final = 1_000
_NUMBERS: Final = "SELECT nextval('@exec_number')"


class PostgresSession(SqlTables):
    """One connection. `is_reading` in a transaction that writes nothing: it takes no locks."""

    layouts: ClassVar[dict[Table[Any, Any], Layout]] = POSTGRES_LAYOUTS
    record_key: ClassVar[str] = "execution_id"

    def __init__(self, connection: Port, searchable: frozenset[str]) -> None:
        super().__init__(searchable)
        self.connection = connection
        self.is_reading = False
        self._is_open = False
        self._pending: list[Statement] = []
        self._next_number = 0
        self._numbers_end = 0

    def begin(self, *, reading: bool = False) -> None:
        """Nothing is sent before the first statement."""
        super().begin()
        self.is_reading = reading
        self._is_open = False
        self._pending = []

    def commit(self) -> None:
        """Sends the waiting writes and the commit in one trip."""
        if self.fault is not None:
            raise self.fault
        if self._is_open or self._pending:
            try:
                self.send([COMMIT])
            except DatabaseFault as fault:
                fault.is_at_commit = True
                raise
            self._is_open = False

    def rollback(self) -> None:
        self._pending = []
        if self.connection.is_in_transaction:
            self.connection.run([ROLLBACK])
        self._is_open = False

    def send(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """One trip: the waiting writes, then these statements; the rows of these."""
        if self.fault is not None:
            raise self.fault
        before = self._pending
        if not self._is_open:
            before = [*self.connection.begin(reading=self.is_reading), *before]
        self._pending = []
        try:
            found = self.connection.run([*before, *statements])
        except Exception as fault:
            self.fault = fault
            raise
        self._is_open = True
        return found[len(before) :]

    # ---- statements

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        return self.send([(statement, values)])[0]

    def change(self, statement: str, values: Sequence[Any]) -> int:
        return int(self.rows(statement, values)[0][0])

    def change_each(self, statements: Sequence[Statement]) -> list[int]:
        return [int(rows[0][0]) for rows in self.send(statements)]

    def change_many(self, statement: str, rows: list[Row]) -> None:
        if self.fault is not None:
            raise self.fault
        arrays = [list(column) for column in zip(*rows, strict=True)]
        self._pending.append((for_many(statement), arrays))

    def add(self, statement: str, values: Sequence[Any]) -> None:
        """Send a statement along with the writes."""
        self._pending.append((statement, values))

    def listed(self, values: Sequence[Any]) -> list[Any]:
        return list(values)

    def number(self, execution_id: str) -> int:
        if self._next_number >= self._numbers_end:
            self.take_numbers(self.rows(_NUMBERS))
        number = self._seqs[execution_id] = self._next_number
        self._next_number += 1
        return number

    def number_statement(self, wanted: int) -> Statement | None:
        """The statement that takes a block of numbers, unless enough are left."""
        is_short = self._next_number + wanted > self._numbers_end
        return (_NUMBERS, ()) if is_short else None

    def take_numbers(self, rows: list[Row]) -> None:
        self._next_number = int(rows[0][0])
        self._numbers_end = self._next_number + _BLOCK
