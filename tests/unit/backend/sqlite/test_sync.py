"""A commit reaches the disk within a second, without anybody waiting for it."""

from pathlib import Path

import pytest

from flowfabric.backend.sqlite import open_sqlite, sync
from flowfabric.backend.sqlite.connection import Durability
from flowfabric.backend.sqlite.sync import Sync


class Hands:
    """A clock that a test moves."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    moved = Hands()
    monkeypatch.setattr(sync, "time", moved)
    return moved


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    descriptors: list[int] = []
    monkeypatch.setattr(sync, "_flush", descriptors.append)
    return descriptors


def test_the_log_is_flushed_once_for_the_commits_of_a_second(
    tmp_path: Path, hands: Hands, flushed: list[int]
) -> None:
    (tmp_path / "home.db-wal").touch()
    log = Sync(str(tmp_path / "home.db"))
    assert not log.run_if_due()
    log.note_commit()
    hands.now += 0.5
    log.note_commit()
    assert not log.run_if_due()
    hands.now += 0.45
    assert log.run_if_due()
    assert not log.run_if_due()
    assert len(flushed) == 1


@pytest.mark.parametrize(("durability", "told"), [("normal", "fsync_1s"), ("fsync", "fsync")])
async def test_a_store_tells_how_durable_it_is(
    tmp_path: Path, durability: Durability, told: str
) -> None:
    backend = open_sqlite(tmp_path / "home.db", durability=durability)
    await backend.prepare()
    assert backend.describe().durability == told
    await backend.close()
