"""A Postgres database as the place where transactions run."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from flowfabric.backend.base import StoreCounters
from flowfabric.backend.postgres.callers import CallersConnection
from flowfabric.backend.postgres.committer import Announce, PostgresCommitter
from flowfabric.backend.postgres.connection import Port
from flowfabric.backend.postgres.faults import ConnectionLost, StatementFailed, error_for
from flowfabric.backend.postgres.first_trips import prefetch
from flowfabric.backend.postgres.horizon import Horizon
from flowfabric.backend.postgres.notifier import PostgresNotifier
from flowfabric.backend.postgres.opening import Opening, open_database
from flowfabric.backend.postgres.tables import PostgresTables
from flowfabric.backend.postgres.threads import Read, Reader, ThreadPool, Writer
from flowfabric.backend.reference.creation import start_create
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import AnyWork, Work, attempt
from flowfabric.backend.sql.thread_queue import ThreadQueue, in_thread
from flowfabric.backend.types import CreateAnswer
from flowfabric.core.new_execution import NewExecution
from flowfabric.errors import FlowFabricError

I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
T = TypeVar("T")

_ORDERED: Final = frozenset({"append", "journal"})


class PostgresRunner:
    """A few threads that write, a few that read, and one that listens; none before `prepare` and
    after `close`."""

    def __init__(self, opening: Opening) -> None:
        self._opening = opening
        self._horizon = Horizon()
        self.counters = StoreCounters()
        self.notifier = PostgresNotifier(opening.target, self.counters, listens=opening.notifies)
        where = opening.target.where
        self._works = ThreadPool(
            "writer", opening.writers, ThreadQueue[AnyWork](where), self._writer
        )
        # One at a time: claims side by side would skip each other's rows and ask again in vain.
        # Claims behind a finish are not among them: what ends would wait for its turn, too.
        self._claims = ThreadPool("claimer", 1, ThreadQueue[AnyWork](where), self._writer)
        # In the order in which they came: one worker may have several calls in flight.
        self._appends = ThreadPool("appender", 1, ThreadQueue[AnyWork](where), self._writer)
        self._reads = ThreadPool("reader", opening.readers, ThreadQueue[Read](where), self._reader)
        self._is_prepared = False
        self.server_version = ""
        self._preparing = asyncio.Lock()

    @property
    def clock(self) -> Callable[[], int]:
        return self._opening.clock or (lambda: time.time_ns() // 1_000_000)

    async def prepare(self) -> None:
        """Check the database and set it up if it is empty; once is enough."""
        async with self._preparing:
            if not self._is_prepared:
                self.server_version = await in_thread(partial(open_database, self._opening))
                self._works.queue.open()
                self._claims.queue.open()
                self._appends.queue.open()
                self._reads.queue.open()
                self._is_prepared = True

    def _writer(self, pool: ThreadPool[AnyWork]) -> Writer:
        notifier = self.notifier
        committer = PostgresCommitter(self._opening, self.counters, notifier.announce)
        return Writer(pool, committer, lambda topics: notifier.notify(*topics))

    def _reader(self, pool: ThreadPool[Read]) -> Reader:
        return Reader(pool, self._opening, self._horizon, self._log_was_read)

    def _log_was_read(self, is_behind: bool) -> None:
        if is_behind:
            self.notifier.log_is_behind()
        else:
            self.notifier.log_is_complete()

    def write(self, work: Work[I, A]) -> Awaitable[list[A | FlowFabricError]]:
        """Do the work in the next transaction. It is done even if the caller is cancelled."""
        if work.name == "claim":
            return self._claims.put(work)
        return (self._appends if work.name in _ORDERED else self._works).put(work)

    async def create_on(
        self, connection: CallersConnection, items: Sequence[NewExecution]
    ) -> list[CreateAnswer | FlowFabricError]:
        """Create executions in a transaction of the caller's."""
        work = partial(_create, self._opening, items, self.notifier.announce_to_all)
        try:
            return await connection.do(self._opening.target, work)
        except (ConnectionLost, StatementFailed) as fault:
            raise error_for(fault, self._opening.target.where) from fault

    def read(self, read: Callable[[Transaction], T]) -> Awaitable[T]:
        return self._reads.put(read)

    async def close(self) -> None:
        """Finish the waiting calls, then close the connections; no thread remains."""
        self.notifier.close()
        await self._reads.close()
        await self._claims.close()
        await self._appends.close()
        await self._works.close()


def _create(
    opening: Opening, items: Sequence[NewExecution], announce: Announce, port: Port
) -> list[CreateAnswer | FlowFabricError]:
    tables = PostgresTables(port, opening.searchable)
    tables.begin()
    tx = Transaction(tables, prefetch(tables, "create", items, opening.clock), opening.searchable)
    each = start_create(tx, items)
    answers = [attempt(tx, "create", partial(each, item)) for item in items]
    tx.flush()
    announce(tables, tx.topics)
    tables.send([])
    return answers
