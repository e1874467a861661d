"""A SQLite file as the place where transactions run: one thread commits groups, some read."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

from flowfabric.backend.base import StoreCounters
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import AnyWork, Work
from flowfabric.backend.sql.batches import Committer, Kind, Share, perform_shares
from flowfabric.backend.sql.thread_queue import Call, ThreadQueue, deliver, in_thread
from flowfabric.backend.sqlite import places
from flowfabric.backend.sqlite.faults import error_for, kind_of
from flowfabric.backend.sqlite.opening import Opened, Opening, open_file
from flowfabric.backend.sqlite.tables import SqliteTables
from flowfabric.backend.sqlite.upkeep import Upkeep
from flowfabric.backend.sqlite.writer import CommitListeners, Writer
from flowfabric.errors import FlowFabricError

I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
T = TypeVar("T")
Read = Callable[[Transaction], Any]


class SqliteRunner:
    """A file: one thread that writes, a few that read; none before `prepare` and after `close`.

    `on_commit` gets the topics of a commit, `on_foreign_change` is called when another process
    wrote; both in the event loop that used the store last.
    """

    def __init__(
        self,
        opening: Opening,
        on_commit: Callable[[set[str]], None],
        on_foreign_change: Callable[[], None],
    ) -> None:
        self._opening = opening
        self._listeners = CommitListeners(on_commit, on_foreign_change)
        name = f"sqlite: {opening.path}"
        self._works = ThreadQueue[AnyWork](name)
        self._reads = ThreadQueue[Read](name)
        self._writing: list[threading.Thread] = []
        self._reading: list[threading.Thread] = []
        self._preparing = asyncio.Lock()
        self.counters = StoreCounters()

    @property
    def clock(self) -> Callable[[], int]:
        return self._opening.clock

    async def prepare(self) -> None:
        """Open the file, making it if it is not there; once is enough."""
        async with self._preparing:
            if self._writing:
                return
            with ExitStack() as undo:
                self._start(await in_thread(partial(open_file, self._opening, undo)))
                undo.pop_all()

    def _start(self, opened: Opened) -> None:
        path, clock, searchable = self._opening.path, self._opening.clock, self._opening.searchable
        committer = SqliteCommitter(opened.writing, path, clock, searchable, self.counters)
        upkeep = Upkeep(opened.maintenance, path)
        writer = Writer(opened.writing, committer, opened.token, self._listeners, upkeep)
        upkeep.start()
        self._works.open()
        self._reads.open()
        self._writing = [writer.start(self._works)]
        self._reading = Readers(path, clock, searchable).start(self._reads, opened.reading)

    def write(self, work: Work[I, A]) -> Awaitable[list[A | FlowFabricError]]:
        """Do the work in the next transaction. It is done even if the caller is cancelled."""
        self._listeners.loop = asyncio.get_running_loop()
        return self._works.put(work)

    def read(self, read: Callable[[Transaction], T]) -> Awaitable[T]:
        self._listeners.loop = asyncio.get_running_loop()
        return self._reads.put(read)

    async def close(self) -> None:
        """Finish the waiting calls, then close the file; no thread remains."""
        # The writer's connection goes last, and so merges the write-ahead log into the file.
        for queue, threads in ((self._reads, self._reading), (self._works, self._writing)):
            for ended in queue.close(len(threads)):
                await ended
            for thread in threads:
                thread.join()
        if self._writing:
            places.release(self._opening.path)


class SqliteCommitter(Committer):
    """Runs groups on the writing connection: everything that waits shares one transaction."""

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


class Readers:
    """The threads that read: each on a connection of its own, each read in one snapshot."""

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
