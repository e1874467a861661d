"""Connections to the file, with the settings every one of them needs."""

import sqlite3
from typing import Final, Literal

from flowfabric.errors import InvalidInput

Durability = Literal["normal", "fsync"]

# No single value may be larger; what users may send is far below.
MAX_VALUE_BYTES: Final = 32 * 1024 * 1024
BUSY_MS: Final = 5_000
_PAGE_BYTES: Final = 8_192
# The upkeep merges the write-ahead log into the file. A writer does so only when the log has this
# length, because the upkeep found no pause.
_CHECKPOINT_PAGES: Final = 16_000
_WRITER_CACHE_KIB: Final = 64 * 1024
_READER_CACHE_KIB: Final = 8 * 1024
_MMAP_BYTES: Final = 128 * 1024 * 1024


def connect(path: str, busy_ms: int = BUSY_MS) -> sqlite3.Connection:
    """A bare connection that changes nothing in the file. Each is used by one thread at a time,
    but not always by the thread that opened it."""
    connection = sqlite3.connect(
        path,
        timeout=busy_ms / 1_000,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
    )
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
    return connection


def configure_writer(connection: sqlite3.Connection, path: str, durability: Durability) -> None:
    # Only a new file accepts it; rows written together fill fewer, larger pages.
    connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise InvalidInput(
            f"path: {path}: the file system has no shared memory for a write-ahead log,"
            " put the file on a local disk"
        )
    synchronous = "FULL" if durability == "fsync" else "NORMAL"
    _set(
        connection,
        synchronous=synchronous,
        foreign_keys="ON",
        wal_autocheckpoint=_CHECKPOINT_PAGES,
        cache_size=-_WRITER_CACHE_KIB,
        temp_store="MEMORY",
        mmap_size=_MMAP_BYTES,
        # Some builds overwrite what is deleted with zeros: every purge would write twice.
        secure_delete="OFF",
    )


def configure_reader(connection: sqlite3.Connection) -> None:
    _set(
        connection,
        query_only="ON",
        cache_size=-_READER_CACHE_KIB,
        temp_store="MEMORY",
        mmap_size=_MMAP_BYTES,
    )


def _set(connection: sqlite3.Connection, **pragmas: object) -> None:
    for name, value in pragmas.items():
        connection.execute(f"PRAGMA {name} = {value}").fetchall()
