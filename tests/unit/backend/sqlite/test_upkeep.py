"""A commit reaches the disk and the file within a second, without anybody waiting for it."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from flowfabric.backend.sqlite import open_sqlite, upkeep
from flowfabric.backend.sqlite.connection import Durability, connect
from flowfabric.backend.sqlite.upkeep import Upkeep

PATIENCE_S = 30.0


class Merging(sqlite3.Connection):
    """A connection that tells when it has merged the log, or fails to."""

    merged: threading.Semaphore
    faults: int = 0

    def execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        try:
            if self.faults:
                self.faults -= 1
                raise sqlite3.OperationalError("disk I/O error")
            return super().execute(statement)
        finally:
            self.merged.release()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home.db"


@pytest.fixture
def writing(path: Path) -> sqlite3.Connection:
    connection = connect(str(path))
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("CREATE TABLE word (text TEXT)")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return connection


@pytest.fixture
def merging(path: Path, writing: sqlite3.Connection) -> Merging:
    connection = sqlite3.connect(
        path, isolation_level=None, check_same_thread=False, factory=Merging
    )
    connection.merged = threading.Semaphore(0)
    return connection


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    descriptors: list[int] = []
    monkeypatch.setattr(upkeep, "_flush", descriptors.append)
    monkeypatch.setattr(upkeep, "_WITHIN_S", 0.0)
    return descriptors


def words_in(path: Path) -> list[str]:
    """What the file itself holds, without the log beside it."""
    alone = path.with_name("alone.db")
    alone.write_bytes(path.read_bytes())
    with closing(sqlite3.connect(alone)) as connection:
        return [text for (text,) in connection.execute("SELECT text FROM word")]


def test_a_commit_is_flushed_and_merged(
    path: Path, writing: sqlite3.Connection, merging: Merging, flushed: list[int]
) -> None:
    tended = Upkeep(merging, str(path))
    tended.start()
    writing.execute("INSERT INTO word VALUES ('kept')")
    assert words_in(path) == []
    tended.note_commit()
    assert merging.merged.acquire(timeout=PATIENCE_S)
    tended.stop()
    assert words_in(path) == ["kept"]
    assert len(flushed) == 1
    writing.close()


def test_a_failing_disk_is_told_once_and_tried_again(
    path: Path,
    writing: sqlite3.Connection,
    merging: Merging,
    flushed: list[int],
    caplog: pytest.LogCaptureFixture,
) -> None:
    merging.faults = 2
    tended = Upkeep(merging, str(path))
    tended.start()
    writing.execute("INSERT INTO word VALUES ('kept')")
    tended.note_commit()
    for _ in range(3):
        assert merging.merged.acquire(timeout=PATIENCE_S)
    tended.stop()
    assert words_in(path) == ["kept"]
    assert [record.message for record in caplog.records] == [
        "sqlite: the write-ahead log was not merged; trying again"
    ]
    writing.close()


class StopsMeanwhile(threading.Event):
    """An end that is called for as soon as somebody has looked for it and found none."""

    def __init__(self, wanted: threading.Event) -> None:
        super().__init__()
        self._wanted = wanted

    def wait(self, timeout: float | None = None) -> bool:
        was_over = super().wait(timeout)
        self.set()
        self._wanted.set()
        return was_over


def test_an_end_in_the_moment_between_is_not_missed(
    path: Path,
    merging: Merging,
    flushed: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tended = Upkeep(merging, str(path))
    monkeypatch.setattr(tended, "_is_over", StopsMeanwhile(tended._is_wanted))
    tended.start()
    tended.note_commit()
    tended._thread.join(PATIENCE_S)
    assert not tended._thread.is_alive()
    tended.stop()


@pytest.mark.parametrize(("durability", "told"), [("normal", "fsync_1s"), ("fsync", "fsync")])
async def test_a_store_tells_how_durable_it_is(
    path: Path, durability: Durability, told: str
) -> None:
    backend = open_sqlite(path, durability=durability)
    await backend.prepare()
    assert backend.describe().durability == told
    await backend.close()
