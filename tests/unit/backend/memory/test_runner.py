"""Transactions in memory: at once, one by one, with notifications behind each."""

import asyncio
import time
from collections.abc import Callable, Sequence

import pytest

from flowfabric.backend.memory import MemoryRunner, MemoryTables, WallClock
from flowfabric.backend.reference.config import get, start_put
from flowfabric.backend.reference.tables import CONFIG
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import MOST_ROWS, Work
from flowfabric.backend.types import ConfigDocument, ConfigPut
from flowfabric.errors import InvalidInput
from tests.clock import VirtualClock


async def test_a_write_is_seen_by_the_next_read_and_rings_once(clock: VirtualClock) -> None:
    notified: list[set[str]] = []
    runner = MemoryRunner(MemoryTables(), clock, notified.append)
    await runner.write(Work("put", start_put, [ConfigPut("a", 0, b"x"), ConfigPut("b", 0, b"x")]))
    assert await runner.read(lambda tx: get(tx, ["a"])) == [ConfigDocument("a", 1, b"x")]
    assert notified == [{"config"}]


async def test_a_failing_item_leaves_nothing_and_spoils_no_other(clock: VirtualClock) -> None:
    def start(tx: Transaction, names: Sequence[str]) -> Callable[[str], str]:
        def one(name: str) -> str:
            tx.put(CONFIG, name, ConfigDocument(name, 1, b"x"))
            if name == "bad":
                raise InvalidInput(name)
            return name

        return one

    runner = MemoryRunner(MemoryTables(), clock)
    answers = await runner.write(Work("test", start, ["a", "bad", "b"]))
    assert [type(answer) for answer in answers] == [str, InvalidInput, str]
    documents = await runner.read(lambda tx: get(tx, ["a", "bad", "b"]))
    assert [document is not None for document in documents] == [True, False, True]


async def test_large_items_do_not_share_a_transaction(clock: VirtualClock) -> None:
    def start(tx: Transaction, prefixes: Sequence[str]) -> Callable[[str], int]:
        def one(prefix: str) -> int:
            for number in range(MOST_ROWS):
                tx.put(CONFIG, f"{prefix}{number}", ConfigDocument("", 1, b"x"))
            return tx.now

        return one

    def tick() -> int:
        clock.advance(1)
        return clock()

    runner = MemoryRunner(MemoryTables(), tick)
    first, second = await runner.write(Work("test", start, ["a", "b"]))
    assert isinstance(first, int)
    assert isinstance(second, int)
    assert second > first


async def test_a_transaction_sees_one_instant_of_the_given_clock(clock: VirtualClock) -> None:
    runner = MemoryRunner(MemoryTables(), clock)
    assert await runner.read(lambda tx: tx.now) == clock()
    clock.advance(5)
    assert await runner.read(lambda tx: tx.now) == clock()


async def test_a_caller_in_a_loop_lets_others_run(clock: VirtualClock) -> None:
    runner = MemoryRunner(MemoryTables(), clock)
    order: list[str] = []

    async def read(name: str) -> None:
        for _ in range(3):
            await runner.read(lambda tx: None)
            order.append(name)

    await asyncio.gather(read("a"), read("b"))
    assert order == ["a", "b"] * 3


def test_the_wall_clock_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter((5_000_000, 3_000_000, 7_000_000))
    monkeypatch.setattr(time, "time_ns", lambda: next(readings))
    clock = WallClock()
    assert [clock(), clock(), clock()] == [5, 5, 7]
