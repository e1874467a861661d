"""A hundred clients that mean no good, or do as one should, in a process of their own."""

import argparse
import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import chain, cycle, repeat
from typing import Final

CLIENTS: Final = 100
# How often each sends something.
_PAUSE_S: Final = 0.05
_SPACES: Final = b" " * 2_048
# Clients that never read keep the windows of their connections full.
_NEVER_READ: Final = frozenset({"unread answers"})

# What a client sends first, and then piece by piece; it begins anew when it is cut off.
Pieces = Callable[[bytes], Iterator[bytes]]


def _head(line: str, login: bytes, *more: str) -> bytes:
    lines = (f"{line} HTTP/1.1", "host: 127.0.0.1", *more)
    return "\r\n".join(lines).encode() + b"\r\n" + login + b"\r\n"


def endless_heads(login: bytes) -> Iterator[bytes]:
    yield _head("GET /readyz", login)[:-2] + b"x-endless: "
    yield from repeat(b"a" * 2_048)


def trailers(login: bytes) -> Iterator[bytes]:
    json_head = ("content-type: application/json", "transfer-encoding: chunked")
    yield _head("POST /v1/executions", login, *json_head) + b"2\r\n{}\r\n0\r\nx-endless: "
    yield from repeat(b"a" * 2_048)


def slow_bodies(login: bytes) -> Iterator[bytes]:
    sized = ("content-type: application/json", "content-length: 1000000")
    yield _head("POST /v1/executions", login, *sized) + b"{"
    yield from repeat(b" ")


def unread_answers(login: bytes) -> Iterator[bytes]:
    yield from repeat(_head("GET /v1/openapi.json", login))


def long_polls(login: bytes) -> Iterator[bytes]:
    yield from repeat(_head("GET /v1/events?wait_ms=30000", login))


def streams(login: bytes) -> Iterator[bytes]:
    feed = _head("GET /v1/events", login, "accept: text/event-stream")
    close = _head("GET /readyz", login, "connection: close")
    yield from cycle((feed, *repeat(b"", 40), close))


def reads(login: bytes) -> Iterator[bytes]:
    """Small requests, as many as those of attacks by small requests."""
    yield from repeat(_head("GET /v1/executions/search?namespace=attacker&limit=1", login))


def submits(login: bytes) -> Iterator[bytes]:
    """Each in one piece: the pace makes the byte rate."""
    body = b'{"lane_id":"idle","execution_kind":"x","namespace":"attacker"' + _SPACES + b"}"
    sized = ("content-type: application/json", f"content-length: {len(body)}")
    yield from repeat(_head("POST /v1/executions", login, *sized) + body)


ATTACKS: Final[dict[str, Pieces]] = {
    "endless heads": endless_heads,
    "trailers": trailers,
    "slow bodies": slow_bodies,
    "unread answers": unread_answers,
    "long polls": long_polls,
    "streams": streams,
}


# Harmless clients, by the attack that they are compared with: requests of about the same size.
HARMLESS: Final[dict[str, Pieces]] = {
    "submits": submits,
    "reads": reads,
}
COMPARED: Final = {"unread answers": "reads", "long polls": "reads", "streams": "reads"}


class Crowd:
    """Together they send at most so many bytes a second."""

    def __init__(self, kind: str, port: int, login: bytes, rate: float) -> None:
        self.sent = 0
        self._pieces = (ATTACKS | HARMLESS)[kind]
        self._reads = kind not in _NEVER_READ
        self._port = port
        self._login = login
        self._rate = rate
        self._began = time.monotonic()

    async def run(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                for _ in range(CLIENTS):
                    group.create_task(self._client())

    async def _client(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                await self._once()
            await asyncio.sleep(_PAUSE_S)

    async def _once(self) -> None:
        """One connection, until the server cuts it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        reading = asyncio.create_task(self._read(reader)) if self._reads else None
        try:
            for piece in chain(self._pieces(self._login)):
                if writer.is_closing() or (reading is not None and reading.done()):
                    return
                await self._pace(len(piece))
                writer.write(piece)
                # Who does not read is not waited for either, within a bound.
                if writer.transport.get_write_buffer_size() > 65_536:
                    await asyncio.wait_for(writer.drain(), 60)
        finally:
            writer.transport.abort()
            if reading is not None:
                reading.cancel()

    async def _pace(self, size: int) -> None:
        """Wait for its turn, so that all together keep to the rate."""
        due = self.sent / self._rate - (time.monotonic() - self._began)
        await asyncio.sleep(max(_PAUSE_S, due))
        self.sent += size

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(65_536):
                pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("port", type=int)
    parser.add_argument("token")
    parser.add_argument("rate", type=float)
    parser.add_argument("seconds", type=float)
    given = parser.parse_args()
    login = f"authorization: Bearer {given.token}\r\n".encode()
    crowd = Crowd(given.kind, given.port, login, given.rate)
    asyncio.run(crowd.run(given.seconds))
    json.dump({"sent": crowd.sent}, sys.stdout)


if __name__ == "__main__":
    main()
