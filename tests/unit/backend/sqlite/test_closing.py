"""Opening once, closing for good, and what a fork leaves behind."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from flowfabric.backend.sqlite import open_sqlite, schema
from flowfabric.backend.sqlite.opening import Clock, Opening
from flowfabric.errors import InvalidInput, OtherFault, Unavailable
from tests.unit.backend.sqlite.homes import (
    PATIENCE,
    Gate,
    Home,
    Ticks,
    a_home,
    now,
    put,
    stored,
    work,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "home.db"


def store_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "sqlite" in thread.name]


async def test_closing_finishes_what_waits_and_leaves_nothing(file: Path) -> None:
    gate = Gate()
    home = Home(Opening(str(file), Clock()))
    await home.prepare()
    assert len(store_threads()) == 5
    first = home.write(work(gate))
    await asyncio.to_thread(gate.entered.wait, PATIENCE)
    waiting = home.write(work(put("a")))
    closing = asyncio.ensure_future(home.close())
    await asyncio.sleep(0)
    gate.opened.set()
    await closing
    assert await first == await waiting == [None]
    assert store_threads() == []
    assert [path.name for path in file.parent.iterdir()] == [file.name]


async def test_late_calls_are_refused(file: Path) -> None:
    async with a_home(file) as home:
        pass
    with pytest.raises(Unavailable, match="is closed"):
        await home.write(work(now))
    with pytest.raises(Unavailable, match="is closed"):
        await home.read(stored)
    await home.close()


async def test_nothing_works_before_the_file_is_open(file: Path) -> None:
    home = Home(Opening(str(file), Clock()))
    with pytest.raises(Unavailable, match="is not open"):
        await home.write(work(now))
    await home.close()
    assert not file.exists()


async def test_preparing_twice_is_preparing_once(file: Path) -> None:
    home = Home(Opening(str(file), Clock()))
    await asyncio.gather(home.prepare(), home.prepare())
    assert len(store_threads()) == 5
    await home.close()


async def test_a_process_opens_a_file_once_whatever_it_calls_it(file: Path) -> None:
    link = file.parent / "link.db"
    link.symlink_to(file)
    async with a_home(file) as home:
        other = open_sqlite(link)
        with pytest.raises(Unavailable, match="already open in this process"):
            await other.prepare()
        await other.close()
        assert await home.write(work(put("a"))) == [None]
    again = open_sqlite(link)
    await again.prepare()
    await again.ping()
    await again.close()


@pytest.mark.parametrize("path", ["", ":memory:", "file:home.db?mode=memory"])
def test_only_files_are_homes(path: str) -> None:
    with pytest.raises(InvalidInput, match="expected the name of a file"):
        open_sqlite(path)


async def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    backend = open_sqlite(tmp_path / "nowhere" / "home.db")
    with pytest.raises(OtherFault) as refusal:
        await backend.prepare()
    await backend.close()
    assert f"the directory {tmp_path / 'nowhere'} does not exist" in refusal.value.detail


async def test_a_directory_is_no_file(tmp_path: Path) -> None:
    backend = open_sqlite(tmp_path)
    with pytest.raises(OtherFault) as refusal:
        await backend.prepare()
    await backend.close()
    assert f"{tmp_path}: unable to open database file; the file is d" in refusal.value.detail


async def test_a_cancelled_opening_leaves_the_file_free(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    original = schema.migrate

    def slow(connection: sqlite3.Connection, path: str) -> int:
        gate.entered.set()
        assert gate.opened.wait(PATIENCE)
        return original(connection, path)

    monkeypatch.setattr(schema, "migrate", slow)
    home = Home(Opening(str(file), Clock()))
    preparing = asyncio.ensure_future(home.prepare())
    await asyncio.to_thread(gate.entered.wait, PATIENCE)
    preparing.cancel()
    gate.opened.set()
    with pytest.raises(asyncio.CancelledError):
        await preparing
    assert store_threads() == []
    await home.prepare()
    await home.close()


async def test_time_never_goes_back(file: Path) -> None:
    instants = iter([50, 60, 20, 70])
    async with a_home(file, clock=lambda: next(instants)) as home:
        told = [(await home.write(work(now)))[0] for _ in range(3)]
        assert [*told, home.clock()] == [50, 60, 60, 70]


async def test_every_transaction_looks_at_the_clock_once(file: Path) -> None:
    async with a_home(file, clock=Ticks()) as home:
        assert await home.write(work(now, now)) == [1_001, 1_001]
        assert await home.write(work(now)) == [1_002]


FORKED = """
import asyncio, os, sys
from flowfabric.backend.sqlite import open_sqlite
from flowfabric.errors import Unavailable

async def refused(call):
    try:
        await call
    except Unavailable as refusal:
        print(refusal.detail.partition(": ")[2].partition(" ")[2])

async def in_child(backend, path):
    await refused(backend.ping())
    await refused(open_sqlite(path).prepare())

async def opened(path):
    backend = open_sqlite(path)
    await backend.prepare()
    return backend

backend = asyncio.new_event_loop().run_until_complete(opened(sys.argv[1]))
child = os.fork()
if not child:
    asyncio.new_event_loop().run_until_complete(in_child(backend, sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_forked_child_is_refused_and_told_what_to_do(file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(file)],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    used, opened = done.stdout.splitlines()
    assert used.startswith("was opened before a fork: open it in the process that uses it")
    assert opened.startswith("was open when this process was forked")
    assert "'spawn'" in used
    assert "'spawn'" in opened
