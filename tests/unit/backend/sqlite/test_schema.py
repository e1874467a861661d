"""The schema: made once, moved forward only, and never put over somebody else's data."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flowfabric.backend.sqlite import open_sqlite
from flowfabric.backend.sqlite.connection import connect
from flowfabric.backend.sqlite.schema import (
    APPLICATION_ID,
    Migration,
    check_ours,
    migrate,
    migrations,
    newest,
)
from flowfabric.errors import Corruption, InvalidInput

NEXT = newest() + 1


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "home.db"


@pytest.fixture
def connection(file: Path) -> Iterator[sqlite3.Connection]:
    with closing(connect(str(file))) as opened:
        yield opened


def schema_of(connection: sqlite3.Connection) -> set[tuple[str, str, str]]:
    return set(connection.execute("SELECT type, name, coalesce(sql, '') FROM sqlite_master"))


def pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def test_steps_are_numbered_without_a_gap() -> None:
    assert [step.number for step in migrations()] == list(range(1, newest() + 1))


def test_a_fresh_schema_equals_a_migrated_one(tmp_path: Path) -> None:
    with (
        closing(connect(str(tmp_path / "fresh.db"))) as fresh,
        closing(connect(str(tmp_path / "grown.db"))) as grown,
    ):
        migrate(fresh, "fresh.db")
        for end in range(1, len(migrations()) + 1):
            migrate(grown, "grown.db", migrations()[:end])
        assert schema_of(fresh) == schema_of(grown)
        assert pragma(fresh, "user_version") == pragma(grown, "user_version") == newest()


def test_every_table_is_strict(connection: sqlite3.Connection, file: Path) -> None:
    migrate(connection, str(file))
    tables = connection.execute("PRAGMA table_list").fetchall()
    ours = [row for row in tables if row[0] == "main" and not row[1].startswith("sqlite_")]
    assert ours
    assert [row[1] for row in ours if not row[5]] == []


def test_a_new_file_is_marked_as_ours(connection: sqlite3.Connection, file: Path) -> None:
    assert migrate(connection, str(file)) == newest()
    assert pragma(connection, "application_id") == APPLICATION_ID


def test_migrating_again_changes_nothing(connection: sqlite3.Connection, file: Path) -> None:
    migrate(connection, str(file))
    before = pragma(connection, "schema_version")
    assert migrate(connection, str(file)) == newest()
    assert pragma(connection, "schema_version") == before


def test_a_step_that_fails_leaves_nothing_behind(
    connection: sqlite3.Connection, file: Path
) -> None:
    migrate(connection, str(file))
    before = schema_of(connection)
    broken = Migration(NEXT, "broken", "CREATE TABLE extra (a);\nCREATE TABLE extra (b);\n")
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, str(file), (*migrations(), broken))
    assert schema_of(connection) == before
    assert pragma(connection, "user_version") == newest()
    assert not connection.in_transaction


def test_only_missing_steps_are_applied(connection: sqlite3.Connection, file: Path) -> None:
    migrate(connection, str(file))
    step = Migration(
        NEXT, "more", "-- one more; with a semicolon\nCREATE TABLE extra (a INT) STRICT;\n"
    )
    assert migrate(connection, str(file), (*migrations(), step)) == NEXT
    assert connection.execute("SELECT count(*) FROM extra").fetchone() == (0,)


def test_a_newer_schema_is_refused_with_advice(connection: sqlite3.Connection, file: Path) -> None:
    migrate(connection, str(file))
    connection.execute(f"PRAGMA user_version = {NEXT}")
    with pytest.raises(InvalidInput) as refusal:
        migrate(connection, str(file))
    assert str(file) in refusal.value.detail
    assert f"has schema {NEXT}, this release knows {newest()}" in refusal.value.detail
    assert "upgrade flowfabric, or open another file" in refusal.value.detail


async def test_somebody_elses_database_is_left_alone(file: Path) -> None:
    with closing(sqlite3.connect(file)) as theirs:
        theirs.execute("CREATE TABLE accounts (id)")
        theirs.commit()
    before = file.read_bytes()
    backend = open_sqlite(file)
    with pytest.raises(InvalidInput, match="database of another program and was left alone"):
        await backend.prepare()
    await backend.close()
    assert file.read_bytes() == before
    assert sorted(path.name for path in file.parent.iterdir()) == [file.name]


def test_a_numbered_database_of_another_program_is_foreign_even_without_tables(
    connection: sqlite3.Connection, file: Path
) -> None:
    connection.execute("PRAGMA user_version = 3")
    with pytest.raises(InvalidInput, match="another program"):
        check_ours(connection, str(file))


async def test_an_empty_file_becomes_ours(file: Path) -> None:
    file.touch()
    backend = open_sqlite(file)
    await backend.prepare()
    await backend.ping()
    await backend.close()


@pytest.mark.parametrize(
    "content", [b"not a database, " * 200, b"SQLite format 3\0" + b"\xff" * 4096]
)
async def test_what_is_no_database_is_refused_and_kept(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    backend = open_sqlite(file)
    with pytest.raises(Corruption) as refusal:
        await backend.prepare()
    await backend.close()
    assert str(file) in refusal.value.detail
    assert "restore a backup" in refusal.value.detail
    assert ".recover" in refusal.value.detail
    assert file.read_bytes() == content


async def test_a_refused_file_can_be_opened_once_it_is_mended(file: Path) -> None:
    file.write_bytes(b"not a database, " * 200)
    backend = open_sqlite(file)
    with pytest.raises(Corruption):
        await backend.prepare()
    file.unlink()
    await backend.prepare()
    await backend.ping()
    await backend.close()
