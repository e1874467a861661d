"""Commits of other processes are noticed; those of this one are not."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flowfabric.backend.sqlite import writer
from flowfabric.backend.sqlite.connection import configure_writer, connect
from flowfabric.backend.sqlite.writer import Watch
from tests.unit.backend.sqlite.homes import PATIENCE, a_home, put, stored, work


class Hands:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    moved = Hands()
    monkeypatch.setattr(writer, "time", moved)
    return moved


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "home.db"


@pytest.fixture
def ours(file: Path) -> Iterator[sqlite3.Connection]:
    with closing(connect(str(file))) as connection:
        configure_writer(connection, str(file), "normal")
        connection.execute("CREATE TABLE t (a)")
        yield connection


@pytest.fixture
def theirs(file: Path, ours: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    with closing(connect(str(file))) as connection:
        yield connection


def look(watch: Watch, hands: Hands) -> bool:
    hands.now += watch.pause
    return watch.has_changed()


def test_only_commits_of_others_count(
    ours: sqlite3.Connection, theirs: sqlite3.Connection, hands: Hands
) -> None:
    watch = Watch(ours)
    assert not look(watch, hands)
    ours.execute("INSERT INTO t VALUES (1)")
    assert not look(watch, hands)
    theirs.execute("INSERT INTO t VALUES (2)")
    assert look(watch, hands)
    assert not look(watch, hands)
    theirs.execute("INSERT INTO t VALUES (3)")
    ours.execute("INSERT INTO t VALUES (4)")
    assert look(watch, hands)
    ours.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    assert not look(watch, hands)


def test_a_read_of_this_process_is_no_change(
    ours: sqlite3.Connection, theirs: sqlite3.Connection, hands: Hands
) -> None:
    watch = Watch(ours)
    theirs.execute("SELECT * FROM t").fetchall()
    assert not look(watch, hands)


def test_looks_grow_rare_and_become_frequent_again(
    ours: sqlite3.Connection, theirs: sqlite3.Connection, hands: Hands
) -> None:
    watch = Watch(ours)
    pauses = []
    for _ in range(12):
        look(watch, hands)
        pauses.append(watch.pause)
    assert pauses == sorted(pauses)
    assert pauses[-1] == 0.1
    theirs.execute("INSERT INTO t VALUES (1)")
    assert look(watch, hands)
    assert watch.pause == 0.005


def test_between_two_looks_nothing_is_read(
    ours: sqlite3.Connection, theirs: sqlite3.Connection, hands: Hands
) -> None:
    watch = Watch(ours)
    look(watch, hands)
    theirs.execute("INSERT INTO t VALUES (1)")
    assert not watch.has_changed()
    assert look(watch, hands)


OTHER_PROCESS = """
import asyncio, sys
from flowfabric.backend.sqlite import open_sqlite
from flowfabric.backend.types import ConfigPut

async def main():
    backend = open_sqlite(sys.argv[1])
    await backend.prepare()
    for line in sys.stdin:
        await backend.config_put([ConfigPut(line.strip(), 0, b"x")])
        print("written", flush=True)
    await backend.close()

asyncio.run(main())
"""


async def test_a_real_second_process_is_heard_and_read(file: Path) -> None:
    async with a_home(file) as home:
        await home.write(work(put("ours")))
        other = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            OTHER_PROCESS,
            str(file),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert other.stdin is not None
        assert other.stdout is not None
        async with asyncio.timeout(PATIENCE):
            # It says so once by opening the file, which leaves a mark in it.
            await home.disturbed.wait()
            for name in ("theirs", "theirs too"):
                home.disturbed.clear()
                other.stdin.write(f"{name}\n".encode())
                assert await other.stdout.readline() == b"written\n"
                await home.disturbed.wait()
                assert name in await home.read(stored)
            other.stdin.close()
            assert await other.wait() == 0
        assert await home.write(work(put("ours again"))) == [None]
        assert len(await home.read(stored)) == 4
