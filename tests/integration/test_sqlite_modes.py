"""Nobody but its owner reads a store: not the file, its log, its shared memory, nor a backup."""

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowfabric.app import close_engine, open_engine
from flowfabric.cli import operations
from flowfabric.config import Settings, StoreUrl
from flowfabric.operations.executions import Submission


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(directory: Path) -> dict[str, int]:
    return {one.name: stat.S_IMODE(one.stat().st_mode) for one in directory.iterdir()}


async def test_a_store_and_its_backup_are_for_their_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "store" / "ff.db"
    path.parent.mkdir()
    engine = await open_engine(Settings(store=StoreUrl("sqlite", str(path))))
    await engine.executions.create(Submission(kind="k"))
    try:
        found = modes(path.parent)
        assert {"ff.db", "ff.db-wal", "ff.db-shm"} <= found.keys()
        await operations._copied(str(path), tmp_path / "copy.db")
    finally:
        await close_engine(engine)
    assert set(found.values()) == {0o600}
    assert modes(tmp_path)["copy.db"] == 0o600


async def test_a_file_that_others_may_read_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "ff.db"
    path.touch(0o644)
    with caplog.at_level(logging.WARNING, "flowfabric"):
        engine = await open_engine(Settings(store=StoreUrl("sqlite", str(path))))
        await close_engine(engine)
    assert "has mode 0644" in caplog.text
    assert modes(tmp_path)["ff.db"] == 0o644
