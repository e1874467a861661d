"""Opening the file: refuse what is not ours, bring the schema up to date, look for damage."""

import sqlite3
from contextlib import ExitStack, closing
from typing import Final, NamedTuple

import msgspec

from flowfabric.backend.sqlite import places, presence, schema
from flowfabric.backend.sqlite.clock import Clock
from flowfabric.backend.sqlite.connection import (
    BUSY_MS,
    Durability,
    configure_reader,
    configure_writer,
    connect,
)
from flowfabric.backend.sqlite.faults import error_for
from flowfabric.backend.sqlite.privacy import make_private
from flowfabric.backend.sqlite.tables import SqliteTables
from flowfabric.backend.sqlite.tags import prepare_tags
from flowfabric.errors import Unavailable

READERS: Final = 3
_OLDEST: Final = (3, 38, 0)


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
    tending: sqlite3.Connection
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
    tending = undo.enter_context(closing(connect(path, opening.busy_ms)))
    return Opened(writing, reading, tending, token)


def _open_reader(opening: Opening, undo: ExitStack) -> sqlite3.Connection:
    connection = undo.enter_context(closing(connect(opening.path, opening.busy_ms)))
    configure_reader(connection)
    return connection
