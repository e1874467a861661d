"""The writer: one transaction for everything that waits, and one bad item spoils no other."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowfabric.backend.reference.tables import BLOBS, CONFIG, FAIRNESS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import MOST_ROWS, Work
from flowfabric.backend.sql import batches
from flowfabric.backend.sqlite.connection import MAX_VALUE_BYTES, connect
from flowfabric.backend.sqlite.writer import MOST_ITEMS
from flowfabric.backend.types import ConfigDocument
from flowfabric.errors import (
    Bug,
    Conflict,
    Corruption,
    FlowFabricError,
    OtherFault,
    PayloadTooLarge,
    ResourceExhausted,
    RetryExhausted,
)
from tests.unit.backend.sqlite.homes import (
    PATIENCE,
    Gate,
    Home,
    Item,
    Ticks,
    a_home,
    now,
    put,
    stored,
    work,
)

TOO_LARGE = bytes(MAX_VALUE_BYTES)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "home.db"


@pytest.fixture
async def home(file: Path) -> AsyncIterator[Home]:
    async with a_home(file, clock=Ticks(), busy_ms=1) as opened:
        yield opened


@pytest.fixture
def rival(file: Path, home: Home) -> Iterator[sqlite3.Connection]:
    """Another connection to the same file, like that of another process."""
    with closing(connect(str(file))) as connection:
        yield connection


async def behind(home: Home, gate: Gate, *calls: tuple[Item, ...]) -> list[list[Any]]:
    """Let calls queue up while the writer is busy; their answers."""
    first = home.write(work(gate))
    await asyncio.to_thread(gate.entered.wait, PATIENCE)
    waiting = [home.write(work(*items)) for items in calls]
    gate.opened.set()
    await first
    return [await call for call in waiting]


def raw(tx: Transaction) -> sqlite3.Connection:
    connection: sqlite3.Connection = tx.tables._connection  # type: ignore[attr-defined]
    return connection


# ---- groups


async def test_a_call_is_answered_when_it_is_in_the_file(home: Home, file: Path) -> None:
    assert await home.write(work(put("a"), put("b"))) == [None, None]
    with closing(sqlite3.connect(file)) as reader:
        assert reader.execute("SELECT name FROM config").fetchall() == [("a",), ("b",)]


async def test_calls_that_wait_together_share_one_transaction(home: Home) -> None:
    answers = await behind(home, Gate(), (now,), (now, now), (now,))
    assert [len(answer) for answer in answers] == [1, 2, 1]
    assert len({instant for answer in answers for instant in answer}) == 1


async def test_a_group_is_bounded(home: Home) -> None:
    call = (now,) * (MOST_ITEMS // 2)
    first, second, third = await behind(home, Gate(), call, call, call)
    assert first == second
    assert third[0] > second[0]


def put_many(tx: Transaction) -> int:
    """An item that fills a transaction."""
    for number in range(MOST_ROWS):
        put(f"{tx.now}-{number}")(tx)
    return tx.now


async def test_large_items_do_not_share_a_transaction(home: Home) -> None:
    first, second = await behind(home, Gate(), (now, put_many, put_many, now, now), (now,))
    assert len(first) == 5
    small, large, larger, after, last = first
    assert small == large < larger < after
    assert after == last == second[0]


async def test_what_a_full_transaction_left_is_done_though_another_item_fails(home: Home) -> None:
    def fail(tx: Transaction) -> None:
        raise Conflict("no")

    large, bad, done = await home.write(work(put_many, fail, put("a")))
    assert isinstance(large, int)
    assert isinstance(bad, Conflict)
    assert done is None
    assert "a" in await home.read(
        lambda tx: [name for name, _ in tx.tables.scan(CONFIG, None, MOST_ROWS + 1)]
    )


async def test_later_items_see_what_earlier_ones_wrote(home: Home) -> None:
    def look(tx: Transaction) -> ConfigDocument | None:
        return tx.get(CONFIG, "a")

    answers = await behind(home, Gate(), (put("a", b"1"), look), (look, put("a", b"2"), look))
    bodies = [answer.body for call in answers for answer in call if answer]
    assert bodies == [b"1", b"1", b"2"]


async def test_an_item_that_fails_leaves_nothing_behind(home: Home) -> None:
    def fail(tx: Transaction) -> None:
        put("bad")(tx)
        raise Conflict("no")

    first, second, third = await home.write(work(put("a"), fail, put("b")))
    assert (first, third) == (None, None)
    assert isinstance(second, Conflict)
    assert await home.read(stored) == ["a", "b"]


async def test_topics_are_notified_once_for_a_group_and_behind_its_answers(home: Home) -> None:
    gate = Gate()
    first = home.write(work(gate))
    await asyncio.to_thread(gate.entered.wait, PATIENCE)
    calls = [asyncio.ensure_future(home.write(work(notify))) for _ in range(3)]
    seen: list[bool] = []
    home.when_notified = lambda: seen.append(all(call.done() for call in calls))
    gate.opened.set()
    await asyncio.gather(first, *calls)
    # The notification comes in the same turn of the loop as the answers, right behind them.
    await asyncio.sleep(0)
    assert seen == [True]
    assert home.notified == [{"lane:a"}]


def notify(tx: Transaction) -> None:
    tx.notify("lane:a")


async def test_a_call_without_items_is_answered(home: Home) -> None:
    assert await home.write(work()) == []


# ---- one bad item


def bad_number(tx: Transaction) -> None:
    wrong: Any = "not a number"
    tx.put(FAIRNESS, (1, "n", "l", "k"), wrong)


def huge_number(tx: Transaction) -> None:
    tx.put(FAIRNESS, (1, "n", "l", "k"), 2**70)


def unpackable(tx: Transaction) -> None:
    wrong: Any = object()
    tx.put(CONFIG, "bad", ConfigDocument("bad", 1, wrong))


def ownerless(tx: Transaction) -> None:
    tx.put(BLOBS, ("{fp:0}:00000000-0000-4000-8000-000000000000", "input"), b"x")


def broken_commit(tx: Transaction) -> None:
    """What SQLite finds wrong only when it commits."""
    raw(tx).execute("PRAGMA defer_foreign_keys = ON")
    raw(tx).execute("INSERT INTO blob VALUES (999, 'input', x'00')")


def flush_inside(tx: Transaction) -> None:
    """An item that hands its writes over before it ends."""
    put("half")(tx)
    bad_number(tx)
    tx.flush()


@pytest.mark.parametrize(
    ("item", "error"),
    [
        (put("bad", TOO_LARGE), PayloadTooLarge),
        (huge_number, PayloadTooLarge),
        (bad_number, Bug),
        (unpackable, Bug),
        (ownerless, Bug),
        (broken_commit, Bug),
        (flush_inside, Bug),
    ],
    ids=["too large", "huge number", "wrong type", "unpackable", "ownerless", "commit", "flush"],
)
async def test_a_fault_of_one_item_fails_that_item_alone(
    home: Home, item: Item, error: type[FlowFabricError]
) -> None:
    calls = [(put("a"), put("b")), (put("c"), item, put("d")), (put("e"),)]
    first, second, third = await behind(home, Gate(), *calls)
    assert first == [None, None]
    assert third == [None]
    assert isinstance(second[1], error)
    assert [second[0], second[2]] == [None, None]
    assert await home.read(stored) == ["a", "b", "c", "d", "e"]


async def test_every_fifth_item_of_a_full_batch_may_be_bad(home: Home) -> None:
    items = [bad_number if n % 5 == 0 else put(f"{n:03}") for n in range(200)]
    answers = await home.write(work(*items))
    assert [n for n, answer in enumerate(answers) if isinstance(answer, Bug)] == [*range(0, 200, 5)]
    assert len(await home.read(stored)) == 160


async def test_a_batch_that_cannot_even_begin_is_answered_item_by_item(home: Home) -> None:
    def start(tx: Transaction, items: Any) -> Any:
        raise KeyError("no start")

    answers = await home.write(Work("broken", start, ["a", "b", "c"]))
    assert [type(answer) for answer in answers] == [Bug, Bug, Bug]


# ---- the file fails


async def test_a_group_waits_for_the_lock_of_another_process(
    home: Home, rival: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def release_lock(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            rival.execute("ROLLBACK")

    monkeypatch.setattr(batches, "_pause", release_lock)
    rival.execute("BEGIN IMMEDIATE")
    assert await home.write(work(put("a"))) == [None]
    assert 0.005 <= pauses[0] <= 0.01 <= pauses[1] <= 0.02


async def test_a_group_gives_up_after_three_tries(
    home: Home, rival: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(batches, "_pause", pauses.append)
    rival.execute("BEGIN IMMEDIATE")
    with pytest.raises(RetryExhausted, match="holds the lock"):
        await home.write(work(put("a"), put("b")))
    rival.execute("ROLLBACK")
    assert len(pauses) == 2
    assert await home.write(work(put("c"))) == [None]
    assert await home.read(stored) == ["c"]


async def test_a_full_disk_fails_the_call_and_nothing_else(home: Home) -> None:
    def fill(tx: Transaction) -> None:
        (pages,) = raw(tx).execute("PRAGMA page_count").fetchone()
        raw(tx).execute(f"PRAGMA max_page_count = {pages}")

    def make_room(tx: Transaction) -> None:
        raw(tx).execute("PRAGMA max_page_count = 1000000")

    await home.write(work(put("before"), fill))
    with pytest.raises(ResourceExhausted) as refusal:
        await home.write(work(put("large", bytes(1_000_000))))
    assert refusal.value.detail.startswith("disk")
    await home.write(work(make_room))
    assert await home.write(work(put("later", bytes(1_000_000)))) == [None]
    assert await home.read(stored) == ["before", "later"]


def sqlite_error(code: int) -> sqlite3.Error:
    error = sqlite3.OperationalError("simulated")
    error.sqlite_errorcode = code
    return error


def fail_with(code: int) -> Item:
    def fail(tx: Transaction) -> None:
        tx.tables.fault = sqlite_error(code)  # type: ignore[attr-defined]

    return fail


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (sqlite3.SQLITE_IOERR, OtherFault),
        (sqlite3.SQLITE_IOERR_FSYNC, OtherFault),
        (sqlite3.SQLITE_READONLY, OtherFault),
        (sqlite3.SQLITE_CANTOPEN, OtherFault),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, RetryExhausted),
        (sqlite3.SQLITE_LOCKED, RetryExhausted),
        (sqlite3.SQLITE_NOMEM, Bug),
    ],
)
async def test_a_fault_of_the_file_fails_the_whole_call(
    home: Home, file: Path, code: int, error: type[FlowFabricError]
) -> None:
    with pytest.raises(error) as refusal:
        await home.write(work(put("a"), fail_with(code)))
    if error is OtherFault:
        assert str(file) in refusal.value.detail
    assert await home.write(work(put("b"))) == [None]
    assert await home.read(stored) == ["b"]


async def test_a_damaged_file_is_written_no_more(home: Home, file: Path) -> None:
    await home.write(work(put("a")))
    for item in (fail_with(sqlite3.SQLITE_CORRUPT), put("b"), put("c")):
        with pytest.raises(Corruption) as refusal:
            await home.write(work(item))
        assert str(file) in refusal.value.detail
        assert ".recover" in refusal.value.detail
    assert await home.read(stored) == ["a"]


# ---- callers


async def test_work_of_a_cancelled_caller_is_done_all_the_same(home: Home) -> None:
    gate = Gate()
    first = home.write(work(gate))
    await asyncio.to_thread(gate.entered.wait, PATIENCE)
    caller = asyncio.ensure_future(home.write(work(put("a"))))
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    gate.opened.set()
    await first
    assert await home.write(work(now))
    assert await home.read(stored) == ["a"]


def test_several_event_loops_may_share_a_home(file: Path) -> None:
    async def main() -> list[str]:
        async with a_home(file) as home:
            await asyncio.to_thread(asyncio.run, _put_there(home, "there"))
            await home.write(work(put("here")))
            return await home.read(stored)

    assert asyncio.run(main()) == ["here", "there"]
    assert not [thread for thread in threading.enumerate() if "sqlite" in thread.name]


async def _put_there(home: Home, name: str) -> None:
    await home.write(work(put(name)))


def test_an_answer_for_a_loop_that_is_gone_is_dropped(file: Path) -> None:
    gate = Gate()

    async def leave(home: Home) -> None:
        _ = home.write(work(gate))
        await asyncio.to_thread(gate.entered.wait, PATIENCE)

    async def main() -> list[str]:
        async with a_home(file) as home:
            await asyncio.to_thread(asyncio.run, leave(home))
            gate.opened.set()
            await home.write(work(put("a")))
            return await home.read(stored)

    assert asyncio.run(main()) == ["a"]
