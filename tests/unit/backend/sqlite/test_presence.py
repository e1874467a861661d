"""A stop that was not clean is noticed by whoever opens the file next."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from flowfabric.backend.sqlite import open_sqlite, presence
from flowfabric.config import processes as processes_module
from flowfabric.errors import Corruption
from tests.unit.backend.sqlite.homes import a_home, put, stored, work

HOLDER = """
import asyncio, sys
from flowfabric.backend.sqlite import open_sqlite

async def main():
    backend = open_sqlite(sys.argv[1])
    await backend.prepare()
    print("open", flush=True)
    sys.stdin.read()
    await backend.close()

asyncio.run(main())
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "home.db"


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that were checked for damage."""
    checked: list[str] = []
    original = presence.check

    def noting(connection: sqlite3.Connection, path: str) -> None:
        checked.append(path)
        original(connection, path)

    monkeypatch.setattr(presence, "check", noting)
    return checked


def processes(file: Path) -> list[int]:
    with closing(sqlite3.connect(file)) as reader:
        return [pid for (pid,) in reader.execute("SELECT pid FROM process")]


def holder(file: Path) -> "subprocess.Popen[str]":
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    return process


async def test_a_clean_stop_leaves_no_trace(file: Path, checks: list[str]) -> None:
    for _ in range(2):
        async with a_home(file):
            assert processes(file) == [os.getpid()]
    assert processes(file) == []
    assert checks == []


async def test_a_killed_process_makes_the_next_one_check(file: Path, checks: list[str]) -> None:
    with holder(file) as killed:
        killed.send_signal(signal.SIGKILL)
        killed.wait(10)
        async with a_home(file) as home:
            assert checks == [str(file)]
            assert processes(file) == [os.getpid()]
            assert await home.write(work(put("a"))) == [None]
    async with a_home(file) as home:
        assert await home.read(stored) == ["a"]
    assert checks == [str(file)]


async def test_a_process_that_lives_is_no_reason_to_check(file: Path, checks: list[str]) -> None:
    with holder(file) as other:
        async with a_home(file):
            assert sorted(processes(file)) == sorted([os.getpid(), other.pid])
        assert processes(file) == [other.pid]
        other.communicate("", timeout=30)
    assert processes(file) == []
    assert checks == []


async def test_a_process_nobody_reaped_yet_is_gone_all_the_same(
    file: Path, checks: list[str]
) -> None:
    with holder(file) as killed:
        killed.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
        async with a_home(file):
            assert checks == [str(file)]


async def test_a_number_given_to_another_process_does_not_count(
    file: Path, checks: list[str]
) -> None:
    async with a_home(file):
        pass
    with closing(sqlite3.connect(file)) as writer:
        writer.execute("INSERT INTO process VALUES ('t', ?, 'another boot/1')", (os.getpid(),))
        writer.commit()
    async with a_home(file):
        assert checks == [str(file)]


async def test_damage_is_found_after_an_unclean_stop(file: Path) -> None:
    async with a_home(file) as home:
        await home.write(work(*(put(f"{n:04}", bytes(500)) for n in range(200))))
    with closing(sqlite3.connect(file)) as writer:
        writer.execute("INSERT INTO process VALUES ('t', 1, 'another boot/1')")
        writer.commit()
        (size,) = writer.execute("PRAGMA page_size").fetchone()
        (page,) = writer.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'config'"
        ).fetchone()
    with file.open("r+b") as damaged:
        damaged.seek((page - 1) * size)
        damaged.write(b"\xff" * size)
    backend = open_sqlite(file)
    with pytest.raises(Corruption) as refusal:
        await backend.prepare()
    await backend.close()
    assert str(file) in refusal.value.detail
    assert "quick_check after an unclean stop" in refusal.value.detail
    assert "restore a backup" in refusal.value.detail


@pytest.mark.parametrize("alive", [True, False])
def test_without_proc_a_process_is_known_by_its_number(
    monkeypatch: pytest.MonkeyPatch, alive: bool
) -> None:
    monkeypatch.setattr(processes_module, "_BOOT", "/nowhere/boot_id")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        if not alive:
            process.communicate(b"\n", timeout=30)
        assert presence._start(process.pid) == (str(process.pid) if alive else "")
        if alive:
            process.communicate(b"\n", timeout=30)
