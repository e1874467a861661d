"""Every error of SQLite has one meaning for callers."""

import sqlite3
from pathlib import Path

import pytest

from flowfabric.backend.sql.batches import Kind
from flowfabric.backend.sqlite.faults import error_for, kind_of, permissions
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


def sqlite_error(code: int, kind: type[sqlite3.Error] = sqlite3.OperationalError) -> sqlite3.Error:
    error = kind("what SQLite said")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("fault", "kind", "error"),
    [
        (sqlite_error(sqlite3.SQLITE_BUSY), "busy", RetryExhausted),
        (sqlite_error(sqlite3.SQLITE_BUSY_SNAPSHOT), "busy", RetryExhausted),
        (sqlite_error(sqlite3.SQLITE_LOCKED), "busy", RetryExhausted),
        (sqlite_error(sqlite3.SQLITE_FULL), "fault", ResourceExhausted),
        (sqlite_error(sqlite3.SQLITE_IOERR_READ), "fault", OtherFault),
        (sqlite_error(sqlite3.SQLITE_CORRUPT_INDEX), "broken", Corruption),
        (sqlite_error(sqlite3.SQLITE_NOTADB), "broken", Corruption),
        (sqlite_error(sqlite3.SQLITE_READONLY_DIRECTORY), "fault", OtherFault),
        (sqlite_error(sqlite3.SQLITE_CANTOPEN), "fault", OtherFault),
        (sqlite_error(sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.IntegrityError), "item", Bug),
        (sqlite_error(sqlite3.SQLITE_TOOBIG, sqlite3.DataError), "item", PayloadTooLarge),
        (OverflowError("int too large"), "item", PayloadTooLarge),
        (sqlite3.ProgrammingError("cannot bind"), "item", Bug),
        (UnicodeEncodeError("utf-8", "x", 0, 1, "surrogate"), "item", Bug),
        (Conflict("which", member="input"), "item", Conflict),
        (sqlite_error(sqlite3.SQLITE_ERROR), "fault", Bug),
    ],
)
def test_a_fault_has_one_kind_and_one_error(
    fault: Exception, kind: Kind, error: type[FlowFabricError]
) -> None:
    assert kind_of(fault) == kind
    made = error_for(fault, "/data/home.db")
    assert type(made) is error
    assert made.__cause__ is fault
    assert made is not fault


def test_an_error_of_ours_keeps_what_it_says() -> None:
    made = error_for(Conflict("which", member="input"), "/data/home.db")
    assert (made.detail, dict(made.details)) == ("which", {"member": "input"})


def test_permissions_tell_who_may_do_what(tmp_path: Path) -> None:
    file = tmp_path / "home.db"
    assert permissions(str(file)).startswith("the file does not exist, its directory is drwx")
    file.touch(0o440)
    assert "the file is -r--r-----" in permissions(str(file))
    assert "(this process is user " in permissions(str(file))
    assert permissions("/nowhere/home.db") == "the directory /nowhere does not exist"
