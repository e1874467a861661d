"""The baseline: the same kind of statements on the same tables, group commit, and no engine.

64 callers hand ready-made statements to one writing thread, which commits whatever waits as one
transaction. Nothing is decided, encoded or checked; row sizes are those the engine writes.
"""

import asyncio
import queue
import sqlite3
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.measure import Cycle
from flowfabric.backend.sqlite.schema import migrate

_BODY = b"r" * 420
_ATTEMPT = b"a" * 230
_ENTRY = b"e" * 260
_BLOB = b"x" * 256

_INSERT = (
    "INSERT INTO exec (execution_id, part, namespace, lane, req_set, kind, state, bucket, sort,"
    " rank, created_at, due_at, purge_at, grant_until, worker_instance_id, flow_id, body)"
    " VALUES (?, 86, 'default', 'default', '-', 'bench', 'waiting', 'waiting', ?, ?, ?, 0, 0, 0,"
    " '', '', ?)"
)
_BEST = (
    "SELECT seq, body FROM exec INDEXED BY exec_claimable WHERE namespace = 'default'"
    " AND lane = 'default' AND req_set = '-' AND state IN ('lost', 'waiting') AND grant_until = 0"
    " ORDER BY rank, execution_id LIMIT 1"
)
_LEASE = (
    "UPDATE exec SET state = 'active', bucket = 'active', sort = ?, due_at = ?,"
    " worker_instance_id = 'bench-1', body = ? WHERE seq = ?"
)
_FINISH = (
    "UPDATE exec SET state = 'completed', bucket = 'completed', sort = ?, due_at = 0,"
    " purge_at = ?, worker_instance_id = '', body = ? WHERE seq = ?"
)
_LOG = "INSERT INTO log (at, body) VALUES (?, ?)"
_PUT_BLOB = "INSERT INTO blob (owner, name, body) VALUES (?, ?, ?)"
_GET_BLOB = "SELECT body FROM blob WHERE owner = ? AND name = 'input'"
_PUT_ATTEMPT = "INSERT INTO attempt (owner, position, body) VALUES (?, 0, ?)"
_GET = "SELECT body FROM exec WHERE seq = ?"

Job = Callable[[sqlite3.Connection], Any]


def create(connection: sqlite3.Connection) -> int:
    now = time.time_ns() // 1_000_000
    execution_id = f"{{fp:86}}:{uuid.uuid4()}"
    row = connection.execute(_INSERT, (execution_id, now, now, now, _BODY))
    connection.execute(_PUT_BLOB, (row.lastrowid, "input", _BLOB))
    return int(row.lastrowid or 0)


def claim(connection: sqlite3.Connection) -> int:
    now = time.time_ns() // 1_000_000
    owner, _ = connection.execute(_BEST).fetchone()
    connection.execute(_LEASE, (now, now + 30_000, _BODY, owner))
    connection.execute(_GET_BLOB, (owner,)).fetchone()
    connection.execute(_LOG, (now, _ENTRY))
    return int(owner)


def complete_of(owner: int) -> Job:
    def complete(connection: sqlite3.Connection) -> None:
        now = time.time_ns() // 1_000_000
        connection.execute(_GET, (owner,)).fetchone()
        connection.execute(_FINISH, (now, now + 86_400_000, _BODY, owner))
        connection.execute(_PUT_ATTEMPT, (owner, _ATTEMPT))
        connection.execute(_PUT_BLOB, (owner, "result", _BLOB))
        connection.execute(_LOG, (now, _ENTRY))

    return complete


class RawWriter:
    """One thread, one connection, one commit for all that waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs: queue.SimpleQueue[tuple[Job, asyncio.Future[Any]] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._loop.create_future()
        self._jobs.put((job, future))
        return future

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        connection = sqlite3.connect(self._path, isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=on"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("PRAGMA cache_size=-65536")
        while group := self._take():
            connection.execute("BEGIN IMMEDIATE")
            answers = [(future, job(connection)) for job, future in group]
            connection.execute("COMMIT")
            self._loop.call_soon_threadsafe(_answer, answers)
        connection.close()

    def _take(self) -> list[tuple[Job, asyncio.Future[Any]]]:
        group = []
        first = self._jobs.get()
        while first is not None:
            group.append(first)
            if len(group) == 200 or self._jobs.empty():
                break
            first = self._jobs.get()
        return group


def _answer(answers: list[tuple[asyncio.Future[Any], Any]]) -> None:
    for future, value in answers:
        if not future.done():
            future.set_result(value)


def open_raw(path: Path) -> RawWriter:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    migrate(connection, str(path))
    connection.close()
    return RawWriter(path)


def raw_cycle_of(writer: RawWriter) -> Cycle:
    async def cycle() -> None:
        await writer.submit(create)
        owner = await writer.submit(claim)
        await writer.submit(complete_of(owner))

    return cycle
