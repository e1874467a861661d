"""The threads of the store: some commit batches, some read, each on a connection of its own."""

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import Any, Final, Generic, Protocol, TypeVar

from flowfabric.backend.postgres.committer import Link, PostgresCommitter
from flowfabric.backend.postgres.faults import ConnectionLost, StatementFailed, error_for, kind_of
from flowfabric.backend.postgres.horizon import Horizon
from flowfabric.backend.postgres.opening import Opening
from flowfabric.backend.postgres.tables import CLOCK, PostgresTables
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import AnyWork
from flowfabric.backend.sql.thread_queue import Call, ThreadQueue, deliver
from flowfabric.errors import Bug

T = TypeVar("T")
Read = Callable[[Transaction], Any]
# Calls of one mechanism that wait share a transaction of up to so many items.
MOST_ITEMS: Final = 32

_log = logging.getLogger("flowfabric.backend")


class ThreadPool(Generic[T]):
    """The threads of one queue, as many as ever had work at once: each keeps a connection open."""

    def __init__(
        self,
        name: str,
        most: int,
        queue: ThreadQueue[T],
        make: Callable[["ThreadPool[T]"], "PoolThread"],
    ) -> None:
        self.queue = queue
        self._name = name
        self._most = most
        self._make = make
        self._threads: list[threading.Thread] = []
        self._in_flight = 0
        self._lock = threading.Lock()

    def put(self, task: T) -> asyncio.Future[Any]:
        future = self.queue.put(task)
        with self._lock:
            self._in_flight += 1
            if self._in_flight > len(self._threads) < self._most:
                self._threads.append(self._started())
        return future

    def done(self, calls: int) -> None:
        with self._lock:
            self._in_flight -= calls

    def _started(self) -> threading.Thread:
        thread = threading.Thread(
            target=self._make(self).run,
            name=f"flowfabric-postgres-{self._name}-{len(self._threads) + 1}",
            # An application that forgets to close must still be able to end.
            daemon=True,
        )
        thread.start()
        return thread

    async def close(self) -> None:
        """Finish what waits; no thread remains."""
        for ended in self.queue.close(len(self._threads)):
            await ended
        for thread in self._threads:
            thread.join()
        self._threads = []


class PoolThread(Protocol):
    def run(self) -> None: ...


class Writer:
    """Takes calls of one mechanism that wait and commits them together."""

    def __init__(
        self,
        pool: ThreadPool[AnyWork],
        committer: PostgresCommitter,
        on_commit: Callable[[set[str]], None],
    ) -> None:
        self._pool = pool
        self._queue = pool.queue
        self._committer = committer
        self._on_commit = on_commit
        # Taken from the queue, but of another mechanism than the ones before.
        self._next: Call[Any] | None = None

    def run(self) -> None:
        while group := self._gather():
            self._serve(group)
        self._committer.link.close()
        assert self._next is not None
        deliver([self._next])

    def _gather(self) -> list[Call[AnyWork]]:
        """Calls of one mechanism; none when the last call has come."""
        call: Call[Any] = self._next or self._queue.get()
        name = call.task.name if call.task is not None else ""
        group: list[Call[AnyWork]] = []
        size = 0
        try:
            while call.task is not None and call.task.name == name:
                group.append(call)
                size += len(call.task.items)
                self._next = None
                if size >= MOST_ITEMS:
                    return group
                call = self._queue.get_nowait()
            self._next = call
        except Empty:
            pass
        return group

    def _serve(self, group: list[Call[AnyWork]]) -> None:
        topics: set[str] = set()
        try:
            topics = self._committer.run(group)
        except Exception as fault:
            _log.exception("postgres: a group of %d calls failed", len(group))
            for call in group:
                call.error = Bug(f"postgres: {type(fault).__name__}")
        self._pool.done(len(group))
        deliver(group, partial(self._on_commit, topics) if topics else None)


class Reader:
    """Each read sees one state of the database."""

    def __init__(
        self,
        pool: ThreadPool[Read],
        opening: Opening,
        horizon: Horizon,
        on_log: Callable[[bool], None],
    ) -> None:
        """`on_log` is told, in the loop of a caller that read the log, whether it is behind."""
        self._pool = pool
        self._queue = pool.queue
        self._opening = opening
        self._on_log = on_log
        self._link = Link(opening, horizon)

    def run(self) -> None:
        call: Call[Any] = self._queue.get()
        while call.task is not None:
            self._serve(call)
            is_behind = self._link.is_log_behind
            deliver([call], None if is_behind is None else partial(self._on_log, is_behind))
            self._end()
            self._pool.done(1)
            call = self._queue.get()
        self._link.close()
        deliver([call])

    def _serve(self, call: Call[Read]) -> None:
        for is_last in (False, True):
            try:
                call.result = self._read(call.task)
                return
            except (ConnectionLost, StatementFailed) as fault:
                self._link.recover(fault)
                # A connection that was lost while it was idle is opened again.
                if is_last or kind_of(fault) != "busy":
                    call.error = error_for(fault, self._opening.target.where)
                    return
            except Exception as fault:
                self._link.recover(fault)
                call.error = fault
                return

    def _read(self, read: Read) -> Any:
        tables = self._link.tables()
        tables.begin(reading=True)
        result = read(Transaction(tables, self._now(tables), self._opening.searchable))
        if tables.fault is not None:
            raise tables.fault
        return result

    def _now(self, tables: PostgresTables) -> int:
        clock = self._opening.clock
        return int(tables.send([CLOCK])[0][0][0]) if clock is None else clock()

    def _end(self) -> None:
        """End the transaction behind the answer, so that nobody waits for it."""
        try:
            self._link.finish_read()
        except (ConnectionLost, StatementFailed) as fault:
            self._link.recover(fault)
