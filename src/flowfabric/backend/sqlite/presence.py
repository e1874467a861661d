"""Who has the file open, and whether somebody went without closing it."""

import os
import secrets
import sqlite3
from typing import Final

from flowfabric.backend.sqlite.faults import RESCUE, kind_of
from flowfabric.errors import Corruption

_BOOT: Final = "/proc/sys/kernel/random/boot_id"
# Ended, though its parent has not taken notice yet.
_DEAD: Final = frozenset({b"Z", b"X"})


def enter(connection: sqlite3.Connection, path: str) -> str:
    """Note that this process has the file open; the token to leave with.

    Where an earlier process vanished the file is checked first: perhaps the machine went with it.
    Several processes may open the file at once, so each has a row of its own.
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
        # Some damage cannot even be walked around.
        if kind_of(fault) != "broken":
            raise
        found = [str(fault)]
    if found != ["ok"]:
        raise Corruption(f"{path}: quick_check after an unclean stop: {'; '.join(found)}. {RESCUE}")


def _is_alive(pid: int, start: str) -> bool:
    """Whether that very process still runs; a number given again to another one does not count."""
    return bool(start) and _start(pid) == start


def _start(pid: int) -> str:
    """When a process began, told so that no other one can be mistaken for it; "" when gone."""
    try:
        with open(_BOOT, encoding="ascii") as boot, open(f"/proc/{pid}/stat", "rb") as facts:
            # The name in brackets may hold anything; what follows is in fixed order.
            state, *after = facts.read().rpartition(b") ")[2].split()
            return "" if state in _DEAD else f"{boot.read().strip()}/{after[18].decode()}"
    except OSError:
        return _start_elsewhere(pid)


def _start_elsewhere(pid: int) -> str:
    """Without /proc a process is known by its number alone."""
    if os.path.exists(_BOOT):
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return str(pid)
