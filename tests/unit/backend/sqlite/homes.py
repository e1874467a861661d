"""An open file, and pieces of work small enough to reason about."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from flowfabric.backend.reference.tables import CONFIG
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import Work
from flowfabric.backend.sqlite.opening import Clock, Opening
from flowfabric.backend.sqlite.runner import SqliteRunner
from flowfabric.backend.types import ConfigDocument

Item = Callable[[Transaction], Any]
PATIENCE = 30.0


class Home(SqliteRunner):
    """A runner that notes the topics it notified, and that others changed the file."""

    def __init__(self, opening: Opening) -> None:
        self.notified: list[set[str]] = []
        self.when_notified: Callable[[], None] = lambda: None
        self.disturbed = asyncio.Event()
        super().__init__(opening, self._notify, self.disturbed.set)

    def _notify(self, topics: set[str]) -> None:
        self.notified.append(topics)
        self.when_notified()


class Ticks:
    """A clock that moves on at every look: one instant per transaction."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        self.now += 1
        return self.now


@asynccontextmanager
async def a_home(path: Path, **fields: Any) -> AsyncIterator[Home]:
    clock = Clock(fields.pop("clock", None))
    home = Home(Opening(str(path), clock, **fields))
    await home.prepare()
    try:
        yield home
    finally:
        await home.close()


def work(*items: Item) -> Work[Item, Any]:
    """Items that each do something with the transaction."""

    def start(tx: Transaction, _: Sequence[Item]) -> Callable[[Item], Any]:
        return lambda item: item(tx)

    return Work("work", start, items)


def now(tx: Transaction) -> int:
    return tx.now


def put(name: str, body: bytes = b"x") -> Item:
    return lambda tx: tx.put(CONFIG, name, ConfigDocument(name, 1, body))


def stored(tx: Transaction) -> list[str]:
    """The names of all stored documents."""
    return [name for name, _ in tx.tables.scan(CONFIG, None, 1_000)]


class Gate:
    """An item that keeps the writer busy until the test lets it go on."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, tx: Transaction) -> None:
        self.entered.set()
        assert self.opened.wait(PATIENCE)
