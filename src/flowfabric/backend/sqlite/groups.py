"""Group commit: everything that waits shares one transaction."""

import sqlite3
from collections.abc import Callable
from typing import Any

from flowfabric.backend.base import StoreCounters
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.sql.batches import Committer, Kind, Share, perform_shares
from flowfabric.backend.sqlite.faults import error_for, kind_of
from flowfabric.backend.sqlite.tables import SqliteTables
from flowfabric.errors import FlowFabricError


class SqliteCommitter(Committer):
    """Runs groups on the writing connection."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        clock: Callable[[], int],
        searchable: frozenset[str],
        counters: StoreCounters,
    ) -> None:
        super().__init__(counters)
        self._connection = connection
        self._path = path
        self._clock = clock
        self._searchable = searchable
        self._tables = SqliteTables(connection, searchable)

    def _transact(self, shares: list[Share]) -> tuple[Transaction, list[list[Any]]]:
        execute = self._connection.execute
        tables = self._tables
        try:
            execute("BEGIN IMMEDIATE")
            tables.begin()
            tx = Transaction(tables, self._clock(), self._searchable)
            answers = perform_shares(tx, shares)
            tx.flush()
            if tables.fault is not None:
                raise tables.fault
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise
        return tx, answers

    def _kind_of(self, fault: Exception) -> Kind:
        return kind_of(fault)

    def _error_for(self, fault: Exception) -> FlowFabricError:
        return error_for(fault, self._path)
