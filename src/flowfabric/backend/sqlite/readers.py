"""The threads that read: each on a connection of its own, each read in one snapshot."""

import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any

from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.sql.thread_queue import Call, ThreadQueue, deliver
from flowfabric.backend.sqlite.faults import error_for
from flowfabric.backend.sqlite.tables import SqliteTables

Read = Callable[[Transaction], Any]


class Readers:
    def __init__(self, path: str, clock: Callable[[], int], searchable: frozenset[str]) -> None:
        self._path = path
        self._clock = clock
        self._searchable = searchable

    def start(
        self, queue: ThreadQueue[Read], connections: Sequence[sqlite3.Connection]
    ) -> list[threading.Thread]:
        threads = [
            threading.Thread(
                target=self._run,
                args=(queue, connection),
                name=f"flowfabric-sqlite-reader-{number}",
                daemon=True,
            )
            for number, connection in enumerate(connections, 1)
        ]
        for thread in threads:
            thread.start()
        return threads

    def _run(self, queue: ThreadQueue[Read], connection: sqlite3.Connection) -> None:
        tables = SqliteTables(connection, self._searchable)
        call: Call[Any] = queue.get()
        while call.task is not None:
            self._serve(connection, tables, call)
            deliver([call])
            call = queue.get()
        connection.close()
        deliver([call])

    def _serve(
        self, connection: sqlite3.Connection, tables: SqliteTables, call: Call[Read]
    ) -> None:
        try:
            connection.execute("BEGIN")
            try:
                tables.begin()
                call.result = call.task(Transaction(tables, self._clock(), self._searchable))
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
        except sqlite3.Error as fault:
            call.error = error_for(fault, self._path)
        except Exception as fault:
            call.error = fault
