"""The baseline of waiting: the statements of suspend, signal and the next claim, and no engine."""

import sqlite3
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

from bench.measure import Cycle
from bench.raw import Job, claim, create, open_raw

_BODY = b"r" * 480
_ENTRY = b"e" * 260
_SUSPENSION = b"s" * 330
_WAITPOINT = b"w" * 300
_SIGNAL = b"g" * 320

_GET = "SELECT body FROM exec WHERE seq = ?"
_GET_DOCUMENT = "SELECT body, first_at, last_at FROM document WHERE owner = ? AND name = ?"
_PUT_DOCUMENT = (
    "INSERT INTO document (owner, name, body, first_at, last_at) VALUES (?, ?, ?, ?, ?)"
    " ON CONFLICT (owner, name) DO UPDATE SET body = excluded.body, last_at = excluded.last_at"
)
_SUSPEND = (
    "UPDATE exec SET state = 'suspended', bucket = 'suspended', sort = 9999999999999, due_at = 0,"
    " worker_instance_id = '', body = ? WHERE seq = ?"
)
_RESUME = (
    "UPDATE exec SET state = 'waiting', bucket = 'waiting', sort = rank, body = ? WHERE seq = ?"
)
_LOG = "INSERT INTO log (at, body) VALUES (?, ?)"
_KEEP = "INSERT INTO kept (owner, version, body) VALUES (?, ?, ?)"

_versions = count(1)


def _keep(connection: sqlite3.Connection, owner: int, now: int) -> None:
    connection.execute(_LOG, (now, _ENTRY))
    connection.execute(_KEEP, (owner, next(_versions), _ENTRY))


def suspend_of(owner: int, waitpoint: str) -> Job:
    def suspend(connection: sqlite3.Connection) -> None:
        now = time.time_ns() // 1_000_000
        connection.execute(_GET, (owner,)).fetchone()
        connection.execute(_SUSPEND, (_BODY, owner))
        for name, body in (("susp", _SUSPENSION), (f"wp/{waitpoint}", _WAITPOINT)):
            connection.execute(_PUT_DOCUMENT, (owner, name, body, now, now))
        _keep(connection, owner, now)

    return suspend


def look_of(owner: int, waitpoint: str) -> Job:
    """What a signal is decided from."""

    def look(connection: sqlite3.Connection) -> None:
        connection.execute(_GET, (owner,)).fetchone()
        for name in ("susp", f"wp/{waitpoint}", f"sig/{waitpoint}/new"):
            connection.execute(_GET_DOCUMENT, (owner, name)).fetchone()

    return look


def signal_of(owner: int, waitpoint: str) -> Job:
    def signal(connection: sqlite3.Connection) -> None:
        now = time.time_ns() // 1_000_000
        connection.execute(_GET, (owner,)).fetchone()
        connection.execute(_RESUME, (_BODY, owner))
        names = ("susp", f"wp/{waitpoint}", f"sig/{waitpoint}/{uuid.uuid4()}")
        for name, body in zip(names, (_SUSPENSION, _WAITPOINT, _SIGNAL), strict=True):
            connection.execute(_PUT_DOCUMENT, (owner, name, body, now, now))
        connection.execute(_LOG, (now, _ENTRY))

    return signal


def resumed_claim(connection: sqlite3.Connection) -> int:
    owner = claim(connection)
    connection.execute(_GET_DOCUMENT, (owner, "susp")).fetchone()
    connection.execute(_KEEP, (owner, next(_versions), _ENTRY))
    return owner


@asynccontextmanager
async def raw_waits(directory: Path, executions: int) -> AsyncIterator[Cycle]:
    """Suspend one of several executions, signal it, and claim whatever waits then."""
    writer = open_raw(directory / "raw.db")
    try:
        for _ in range(executions):
            await writer.submit(create)
        held = deque([await writer.submit(claim) for _ in range(executions)])

        async def cycle() -> None:
            owner, waitpoint = held.popleft(), str(uuid.uuid4())
            await writer.submit(suspend_of(owner, waitpoint))
            await writer.submit(look_of(owner, waitpoint))
            await writer.submit(signal_of(owner, waitpoint))
            held.append(await writer.submit(resumed_claim))

        yield cycle
    finally:
        writer.close()
