"""The default home: one SQLite file, one host, nothing to install and nothing to start."""

import os
import sqlite3
from collections.abc import Callable

from flowfabric.backend.bells import LocalBells
from flowfabric.backend.reference.backend import ReferenceBackend
from flowfabric.backend.sqlite import schema
from flowfabric.backend.sqlite.clock import Clock
from flowfabric.backend.sqlite.connection import Durability
from flowfabric.backend.sqlite.opening import Opening
from flowfabric.backend.sqlite.places import canonical
from flowfabric.backend.sqlite.runner import SqliteRunner
from flowfabric.backend.types import Description
from flowfabric.core.version import VERSION

__all__ = ["Durability", "open_sqlite"]


def open_sqlite(
    path: str | os.PathLike[str],
    *,
    clock: Callable[[], int] | None = None,
    durability: Durability = "normal",
    searchable: frozenset[str] = frozenset(),
) -> ReferenceBackend:
    """A store in a file. `prepare` opens it, and makes it if it is not there. A process opens a
    file once: a second attempt is refused until the first is closed.

    With durability `normal` a power failure may take the commits of the last second; `fsync` waits
    for the disk at every commit. The end of a process takes nothing in either case.
    """
    opening = Opening(canonical(path), Clock(clock), durability, searchable)
    bells = LocalBells()
    runner = SqliteRunner(opening, lambda rings: bells.ring(*rings), bells.ring_all)
    return ReferenceBackend(runner, bells, _description(durability))


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
