"""The baseline of appends: the statements a fenced append cannot do without, and no engine."""

import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import cycle
from pathlib import Path

from bench.measure import Cycle
from bench.raw import Job, RawWriter, create, open_raw

_FRAME = b"f" * 70
_META = b"m" * 60

_GUARD = "SELECT body FROM exec WHERE seq = ?"
_COUNTERS = "SELECT body FROM stream WHERE owner = ? AND attempt = 0"
_PUT_FRAME = "INSERT INTO frame (owner, attempt, ms, seq, body) VALUES (?, 0, ?, ?, ?)"
_PUT_COUNTERS = (
    "INSERT INTO stream (owner, attempt, body) VALUES (?, 0, ?)"
    " ON CONFLICT (owner, attempt) DO UPDATE SET body = excluded.body"
)
_BEHIND = (
    "SELECT ms, seq, body FROM frame"
    " WHERE owner = ? AND attempt = 0 AND (ms, seq) > (?, ?) ORDER BY ms, seq LIMIT 50"
)


class Stream:
    """One attempt's stream and the last id given in it."""

    def __init__(self, owner: int) -> None:
        self.owner = owner
        self.last = (0, 0)

    def append(self, connection: sqlite3.Connection) -> None:
        connection.execute(_GUARD, (self.owner,)).fetchone()
        connection.execute(_COUNTERS, (self.owner,)).fetchone()
        now = time.time_ns() // 1_000_000
        ms, seq = self.last
        self.last = (now, 0) if now > ms else (ms, seq + 1)
        connection.execute(_PUT_FRAME, (self.owner, *self.last, _FRAME))
        connection.execute(_PUT_COUNTERS, (self.owner, _META))

    def reading(self, after: tuple[int, int]) -> Job:
        return lambda connection: connection.execute(_BEHIND, (self.owner, *after)).fetchall()


@asynccontextmanager
async def raw_streams(directory: Path, n: int) -> AsyncIterator[tuple[RawWriter, list[Stream]]]:
    writer = open_raw(directory / "raw.db")
    try:
        yield writer, [Stream(await writer.submit(create)) for _ in range(n)]
    finally:
        writer.close()


def raw_appends(writer: RawWriter, streams: list[Stream]) -> Cycle:
    turn = cycle(streams)

    async def append() -> None:
        await writer.submit(next(turn).append)

    return append


def raw_ways(writer: RawWriter, streams: list[Stream]) -> Cycle:
    """Append one frame, then read what is new."""
    stream = streams[0]

    async def append_and_read() -> None:
        after = stream.last
        await writer.submit(stream.append)
        assert await writer.submit(stream.reading(after))

    return append_and_read
