"""A door in front of a Postgres server: it can lead elsewhere, and cut connections in a COMMIT."""

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final

# What libpq sends: "prepare COMMIT under this name", and "run what has this name".
_PREPARES: Final = re.compile(rb"P....([^\0]*)\0COMMIT\0", re.DOTALL)
_RUNS: Final = re.compile(rb"B....\0([^\0]*)\0", re.DOTALL)
_CHUNK: Final = 1_048_576


class Door:
    def __init__(self, target: int) -> None:
        self.port = 0
        self.target = target
        # Asked at each COMMIT whether the connection is cut.
        self.is_cut: Callable[[], bool] = lambda: False
        # Cut before the server had it, and behind it, before its answer.
        self.cuts = {"before": 0, "behind": 0}
        self._passages: set[asyncio.Task[None]] = set()

    def enter(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passage = asyncio.create_task(self._serve(reader, writer))
        self._passages.add(passage)
        passage.add_done_callback(self._passages.discard)

    async def close(self) -> None:
        for passage in self._passages:
            passage.cancel()
        await asyncio.gather(*self._passages, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with _ended(writer), suppress(OSError):
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self.target)
            with _ended(inner_writer):
                passage = _Passage(self, (reader, writer), (inner_reader, inner_writer))
                back = asyncio.create_task(passage.answer())
                try:
                    await passage.ask()
                finally:
                    back.cancel()
                    await asyncio.gather(back, return_exceptions=True)


@contextmanager
def _ended(writer: asyncio.StreamWriter) -> Iterator[None]:
    """Cut the connection at the end, whatever is still to be sent."""
    try:
        yield
    finally:
        writer.transport.abort()
        writer.close()


class _Passage:
    """One connection through the door."""

    def __init__(
        self,
        door: Door,
        outer: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        inner: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._door = door
        self._asks, self._hears = outer
        self._answers, self._is_asked = inner
        self._commits: set[bytes] = set()
        self._is_silent = False
        self._has_answered = asyncio.Event()

    async def ask(self) -> None:
        while data := await self._asks.read(_CHUNK):
            if self._has_commit(data) and self._door.is_cut():
                if random.random() < 0.5:
                    self._door.cuts["before"] += 1
                    return
                self._is_silent = True
                self._is_asked.write(data)
                await self._has_answered.wait()
                self._door.cuts["behind"] += 1
                return
            self._is_asked.write(data)

    def _has_commit(self, data: bytes) -> bool:
        self._commits.update(_PREPARES.findall(data))
        return any(name in self._commits for name in _RUNS.findall(data))

    async def answer(self) -> None:
        while data := await self._answers.read(_CHUNK):
            if self._is_silent:
                # The transaction is over when the last answer to it has come.
                if data.endswith(b"Z\0\0\0\5I"):
                    self._has_answered.set()
            else:
                self._hears.write(data)
        self._has_answered.set()
        self._hears.transport.abort()


@asynccontextmanager
async def door_to(target: int) -> AsyncIterator[Door]:
    door = Door(target)
    server = await asyncio.start_server(door.enter, "127.0.0.1", 0, limit=_CHUNK)
    door.port = server.sockets[0].getsockname()[1]
    try:
        yield door
    finally:
        server.close()
        await door.close()
