"""Opening the file: refuse what is not ours, bring the schema up to date, look for damage."""

import logging
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Final, NamedTuple

import msgspec

from flowfabric.backend.sql.tags import prepare_tags
from flowfabric.backend.sqlite import places, presence, schema
from flowfabric.backend.sqlite.connection import (
    BUSY_MS,
    Durability,
    configure_reader,
    configure_writer,
    connect,
)
from flowfabric.backend.sqlite.faults import error_for
from flowfabric.backend.sqlite.tables import SqliteTables
from flowfabric.errors import Unavailable

_log = logging.getLogger("flowfabric.backend.sqlite")

# The file holds payloads, tokens and the signing key.
OWNER_ONLY: Final = 0o600
READERS: Final = 3
_OLDEST: Final = (3, 38, 0)


def wall_clock() -> int:
    return time.time_ns() // 1_000_000


class Clock:
    """Instants in ms that never go back within this process, whatever thread asks."""

    def __init__(self, source: Callable[[], int] | None = None) -> None:
        self._source = source or wall_clock
        self._last = 0
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self._last = max(self._last, self._source())
            return self._last


class Opening(msgspec.Struct, frozen=True):
    """Which file, and how it is used."""

    path: str
    clock: Clock
    durability: Durability = "normal"
    searchable: frozenset[str] = frozenset()
    busy_ms: int = BUSY_MS
    readers: int = READERS


class Opened(NamedTuple):
    """The connections of an open file, and the token it is closed with."""

    writing: sqlite3.Connection
    reading: list[sqlite3.Connection]
    maintenance: sqlite3.Connection
    token: str


def open_file(opening: Opening, undo: ExitStack) -> Opened:
    """Open the file, making it if it is not there. A process opens a file once. What has to be
    undone if anything fails, here or later, goes onto the stack."""
    path = opening.path
    if sqlite3.sqlite_version_info < _OLDEST:
        raise Unavailable(f"sqlite: expected 3.38 or newer, got {sqlite3.sqlite_version}")
    places.refuse_network(path)
    places.occupy(path)
    undo.callback(places.release, path)
    try:
        return _open(opening, undo)
    except sqlite3.Error as fault:
        raise error_for(fault, path) from fault


def _open(opening: Opening, undo: ExitStack) -> Opened:
    path = opening.path
    make_private(path)
    writing = undo.enter_context(closing(connect(path, opening.busy_ms)))
    # Before anything else: even the journal mode is a change of the file.
    schema.check_ours(writing, path)
    configure_writer(writing, path, opening.durability)
    schema.migrate(writing, path)
    token = presence.enter(writing, path)
    writing.execute("BEGIN IMMEDIATE")
    with writing:
        prepare_tags(SqliteTables(writing), opening.searchable)
    reading = [_open_reader(opening, undo) for _ in range(opening.readers)]
    maintenance = undo.enter_context(closing(connect(path, opening.busy_ms)))
    return Opened(writing, reading, maintenance, token)


def _open_reader(opening: Opening, undo: ExitStack) -> sqlite3.Connection:
    connection = undo.enter_context(closing(connect(opening.path, opening.busy_ms)))
    configure_reader(connection)
    return connection


def make_private(path: str) -> None:
    """Create the file for its owner only, whatever the umask. SQLite gives its log and its shared
    memory the mode of the file. One that is there already keeps its mode, with a warning."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, OWNER_ONLY))
    except FileExistsError:
        _warn_of_readers(path)
    except OSError:
        # SQLite fails on it, too, and its error is the one that is raised.
        return


def _warn_of_readers(path: str) -> None:
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if mode & ~OWNER_ONLY:
        _log.warning(
            "%s has mode %04o: others may read payloads and keys; run chmod 600 on it", path, mode
        )
