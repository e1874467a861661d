"""A SQLite file as the place where transactions run."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

from flowfabric.backend.base import StoreCounters
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import AnyWork, Work
from flowfabric.backend.sql.thread_queue import ThreadQueue, in_thread
from flowfabric.backend.sqlite import places
from flowfabric.backend.sqlite.groups import SqliteCommitter
from flowfabric.backend.sqlite.opening import Opened, Opening, open_file
from flowfabric.backend.sqlite.readers import Read, Readers
from flowfabric.backend.sqlite.upkeep import Upkeep
from flowfabric.backend.sqlite.writer import CommitListeners, Writer
from flowfabric.errors import FlowFabricError

I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
T = TypeVar("T")


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
