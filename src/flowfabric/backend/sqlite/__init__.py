"""The default store: one SQLite file, one host, nothing to install and nothing to start."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from flowfabric.backend.notifier import LocalNotifier
from flowfabric.backend.reference.backend import ReferenceBackend
from flowfabric.backend.sqlite import schema
from flowfabric.backend.sqlite.connection import Durability
from flowfabric.backend.sqlite.faults import error_for
from flowfabric.backend.sqlite.moving import SqliteMovable
from flowfabric.backend.sqlite.opening import READERS, Clock, Opening
from flowfabric.backend.sqlite.places import canonical
from flowfabric.backend.sqlite.repair import damage_of, repair
from flowfabric.backend.sqlite.runner import SqliteRunner
from flowfabric.backend.types import Description
from flowfabric.core.version import VERSION

__all__ = ["Durability", "damage_of", "movable_file", "open_sqlite", "pending_steps", "repair"]


def pending_steps(path: str | os.PathLike[str]) -> list[str]:
    """The steps of the schema that a file has not seen; all of them if it is not there yet.
    Nothing is changed."""
    name = canonical(path)
    seen = 0
    if os.path.exists(name):
        address = f"{Path(name).as_uri()}?mode=ro"
        with closing(sqlite3.connect(address, uri=True)) as connection:
            try:
                seen = schema.check_ours(connection, name)
            except sqlite3.Error as fault:
                raise error_for(fault, name) from fault
    return [step.name for step in schema.migrations() if step.number > seen]


def open_sqlite(
    path: str | os.PathLike[str],
    *,
    clock: Callable[[], int] | None = None,
    durability: Durability = "normal",
    searchable: frozenset[str] = frozenset(),
    readers: int = READERS,
) -> ReferenceBackend:
    """A store in a file. `prepare` opens it, and makes it if it is not there. A process opens a
    file once: a second attempt is refused until the first is closed.

    With durability `normal` a power failure may take the commits of the last second; `fsync` waits
    for the disk at every commit. A process that ends or crashes loses nothing in either case.
    """
    opening = Opening(canonical(path), Clock(clock), durability, searchable, readers=readers)
    notifier = LocalNotifier()
    runner = SqliteRunner(opening, lambda topics: notifier.notify(*topics), notifier.notify_all)
    return ReferenceBackend(runner, notifier, _description(durability))


def movable_file(
    path: str | os.PathLike[str],
    searchable: frozenset[str],
    clock: Callable[[], int] | None = None,
    *,
    is_new: bool,
) -> SqliteMovable:
    """A file as the source of a move, or as its target, which may be new."""
    opening = Opening(canonical(path), Clock(clock), searchable=searchable)
    return SqliteMovable(opening, is_new=is_new)


def _description(durability: Durability) -> Description:
    return Description(
        family="sqlite",
        tag=0x03,
        library_version=VERSION,
        server_version=sqlite3.sqlite_version,
        layout=schema.newest(),
        durability="fsync" if durability == "fsync" else "fsync_1s",
        wakeup="events; other processes within 100 ms",
        spread="one file",
        lane_order="strict",
        event_order="total",
    )
