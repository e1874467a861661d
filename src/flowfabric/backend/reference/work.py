"""One batch of one mechanism as a piece of work, and how a transaction does it."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from flowfabric.backend.base import StoreCounters
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.errors import Bug, FlowFabricError

I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
T = TypeVar("T")

Start = Callable[[Transaction, Sequence[I]], Callable[[I], A]]

# Items behind so many rows wait for the next transaction: a group of large steps would otherwise
# keep everybody else out for as long as all of them take.
MOST_ROWS: Final = 400

_log = logging.getLogger("flowfabric.backend")


class Work(msgspec.Struct, Generic[I, A], frozen=True, eq=False):
    """`start` looks at the whole batch (to load what it needs at once) and returns what does one
    item of it."""

    name: str
    start: Start[I, A]
    items: Sequence[I]

    def part(self, items: Sequence[I]) -> "Work[I, A]":
        """The same work on some of its items."""
        return Work(self.name, self.start, items)


def perform(tx: Transaction, work: Work[I, A]) -> list[A | FlowFabricError]:
    """Do a batch until the transaction is full: items without an answer are left to the next one.
    An item that fails leaves nothing behind and is answered by its error."""
    each = work.start(tx, work.items)
    answers: list[A | FlowFabricError] = []
    for item in work.items:
        answers.append(attempt(tx, work.name, partial(each, item)))
        if tx.rows_written >= MOST_ROWS:
            break
    return answers


def attempt(tx: Transaction, name: str, item: Callable[[], A]) -> A | FlowFabricError:
    try:
        return tx.item(item)
    except FlowFabricError as fault:
        return fault
    except Exception as fault:
        _log.exception("%s: an item failed", name)
        bug = Bug(f"{name}: {type(fault).__name__}")
        bug.__cause__ = fault
        return bug


class Runner(Protocol):
    """Where transactions run: several batches that wait at once may share one."""

    def write(self, work: Work[I, A]) -> Awaitable[list[A | FlowFabricError]]: ...

    def read(self, read: Callable[[Transaction], T]) -> Awaitable[T]: ...

    @property
    def clock(self) -> Callable[[], int]: ...

    @property
    def counters(self) -> StoreCounters: ...

    async def prepare(self) -> None: ...

    async def close(self) -> None: ...


AnyWork = Work[Any, Any]
