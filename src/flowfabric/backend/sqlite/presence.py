"""Which processes have the file open, and whether one ended without closing it."""

import os
import secrets
import sqlite3

from flowfabric.backend.sqlite.faults import RESCUE, kind_of
from flowfabric.config.processes import boot_id, ticks_at_start
from flowfabric.errors import Corruption


def enter(connection: sqlite3.Connection, path: str) -> str:
    """Note that this process has the file open; the token to leave with.

    If an earlier process ended without closing the file, the file is checked first: perhaps the
    machine failed. Several processes may open the file at once, so each has a row of its own.
    """
    gone = [
        token
        for token, pid, start in connection.execute("SELECT token, pid, start FROM process")
        if not _is_alive(pid, start)
    ]
    if gone:
        check(connection, path)
    token = secrets.token_hex(8)
    pid = os.getpid()
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("DELETE FROM process WHERE token = ?", [(old,) for old in gone])
    connection.execute("INSERT INTO process VALUES (?, ?, ?)", (token, pid, _start(pid)))
    connection.execute("COMMIT")
    return token


def leave(connection: sqlite3.Connection, token: str) -> None:
    connection.execute("DELETE FROM process WHERE token = ?", (token,))


def check(connection: sqlite3.Connection, path: str) -> None:
    """Read the whole file once, looking for damage."""
    try:
        found = [row[0] for row in connection.execute("PRAGMA quick_check(10)")]
    except sqlite3.DatabaseError as fault:
        # Some damage makes the check itself fail.
        if kind_of(fault) != "broken":
            raise
        found = [str(fault)]
    if found != ["ok"]:
        raise Corruption(f"{path}: quick_check after an unclean stop: {'; '.join(found)}. {RESCUE}")


def _is_alive(pid: int, start: str) -> bool:
    """Whether this very process still runs, and not another one that was given its number."""
    return bool(start) and _start(pid) == start


def _start(pid: int) -> str:
    """When a process began, as a text that no other process has; "" when it has ended."""
    try:
        boot = boot_id()
    except OSError:
        return _start_elsewhere(pid)
    ticks = ticks_at_start(pid)
    return f"{boot}/{ticks}" if ticks else ""


def _start_elsewhere(pid: int) -> str:
    """Without /proc a process is known by its number alone."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return str(pid)
