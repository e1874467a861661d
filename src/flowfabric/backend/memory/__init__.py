"""The store that keeps everything in this process: the reference over dicts, nothing durable."""

import asyncio
import time
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

from flowfabric.backend.base import StoreCounters
from flowfabric.backend.notifier import LocalNotifier
from flowfabric.backend.reference.backend import ReferenceBackend
from flowfabric.backend.reference.memory_tables import MemoryTables
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import Work, perform
from flowfabric.backend.types import Description
from flowfabric.core.version import VERSION
from flowfabric.errors import FlowFabricError

__all__ = ["MemoryRunner", "MemoryTables", "WallClock", "open_memory"]

I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
T = TypeVar("T")


class WallClock:
    """Milliseconds of the wall clock; when that is set back, time stands still until it caught
    up."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> int:
        self._last = max(self._last, time.time_ns() // 1_000_000)
        return self._last


def _ignore(topics: set[str]) -> None:
    """Nobody subscribes."""


class MemoryRunner:
    """A transaction runs without a break, so nobody sees half of it; the lock is for those who
    share one store between event loops."""

    def __init__(
        self,
        tables: MemoryTables,
        clock: Callable[[], int] | None = None,
        on_commit: Callable[[set[str]], None] = _ignore,
    ) -> None:
        self.tables = tables
        self.clock = clock or WallClock()
        self._on_commit = on_commit
        self.counters = StoreCounters()
        self._lock = Lock()

    async def write(self, work: Work[I, A]) -> list[A | FlowFabricError]:
        answers: list[A | FlowFabricError] = []
        while len(answers) < len(work.items):
            # Nothing here waits, so a caller in a loop would otherwise keep all others out.
            await asyncio.sleep(0)
            done = self._transact(work.part(work.items[len(answers) :]))
            answers += done
        return answers

    def _transact(self, work: Work[I, A]) -> list[A | FlowFabricError]:
        with self._lock:
            tx = self._begin()
            answers = perform(tx, work)
            tx.flush()
            self.counters.siblings.update(tx.siblings)
        if tx.topics:
            self._on_commit(tx.topics)
        return answers

    async def read(self, read: Callable[[Transaction], T]) -> T:
        await asyncio.sleep(0)
        with self._lock:
            return read(self._begin())

    async def prepare(self) -> None:
        """Nothing has to be opened."""

    async def close(self) -> None:
        """Nothing is held that would have to be let go."""

    def _begin(self) -> Transaction:
        return Transaction(self.tables, self.clock(), self.tables.searchable)


def open_memory(
    *, clock: Callable[[], int] | None = None, searchable: frozenset[str] = frozenset()
) -> ReferenceBackend:
    """A store that lives and ends with this process."""
    notifier = LocalNotifier()
    tables = MemoryTables(searchable)
    runner = MemoryRunner(tables, clock, on_commit=lambda topics: notifier.notify(*topics))
    description = Description(
        family="memory",
        tag=0x04,
        library_version=VERSION,
        server_version="",
        layout=1,
        durability="memory",
        wakeup="events",
        spread="one process",
        lane_order="strict",
        event_order="total",
    )
    return ReferenceBackend(runner, notifier, description)
