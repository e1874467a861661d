"""Reads: several at once, each of one moment, none of them writing."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric.backend.reference.tables import CONFIG, Changes, Put
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.sqlite.opening import READERS
from flowfabric.backend.types import ConfigDocument
from flowfabric.errors import Conflict, OtherFault
from tests.unit.backend.sqlite.homes import PATIENCE, Gate, Home, a_home, put, stored, work


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Home]:
    async with a_home(tmp_path / "home.db") as opened:
        yield opened


async def test_a_read_sees_everything_answered_before_it(home: Home) -> None:
    for name in "abc":
        await home.write(work(put(name)))
        assert (await home.read(stored))[-1] == name


async def test_reads_run_side_by_side(home: Home) -> None:
    together = threading.Barrier(READERS)

    def meet(_: Transaction) -> int:
        return together.wait(PATIENCE)

    met = await asyncio.gather(*(home.read(meet) for _ in range(READERS)))
    assert sorted(met) == list(range(READERS))


async def test_a_read_goes_on_while_the_writer_is_busy(home: Home) -> None:
    gate = Gate()
    busy = home.write(work(put("a"), gate))
    await asyncio.to_thread(gate.entered.wait, PATIENCE)
    assert await home.read(stored) == []
    gate.opened.set()
    await busy
    assert await home.read(stored) == ["a"]


async def test_one_read_sees_one_moment(home: Home) -> None:
    looked, written = threading.Event(), threading.Event()

    def look_twice(tx: Transaction) -> tuple[list[str], list[str]]:
        first = stored(tx)
        looked.set()
        assert written.wait(PATIENCE)
        return first, stored(tx)

    await home.write(work(put("a")))
    reading = asyncio.ensure_future(home.read(look_twice))
    await asyncio.to_thread(looked.wait, PATIENCE)
    await home.write(work(put("b")))
    written.set()
    assert await reading == (["a"], ["a"])


async def test_a_read_cannot_write(home: Home) -> None:
    def write(tx: Transaction) -> None:
        tx.tables.write(Changes({CONFIG: [Put("a", ConfigDocument("a", 1, b""))]}, []))

    with pytest.raises(OtherFault, match="readonly"):
        await home.read(write)
    assert await home.read(stored) == []


async def test_what_a_read_raises_reaches_its_caller_and_nobody_else(home: Home) -> None:
    def refuse(_: Transaction) -> None:
        raise Conflict("no")

    def stumble(tx: Transaction) -> None:
        tx.tables.get(CONFIG, "a" * 10)
        raise KeyError("x")

    for read, error in ((refuse, Conflict), (stumble, KeyError)):
        for _ in range(READERS):
            with pytest.raises(error):
                await home.read(read)
    assert await home.read(stored) == []


async def test_a_reader_fails_no_later_read(home: Home) -> None:
    def nonsense(tx: Transaction) -> None:
        connection: sqlite3.Connection = tx.tables._connection  # type: ignore[attr-defined]
        connection.execute("SELECT * FROM nowhere")

    for _ in range(READERS):
        with pytest.raises(Exception, match="no such table"):
            await home.read(nonsense)
    assert await home.read(stored) == []
