"""What a handler answers: a body with its status and headers, or a stream of events."""

from collections.abc import AsyncGenerator
from typing import Any, Final

from flowfabric.engine.permits import Permits
from flowfabric.operations import answers

encode: Final = answers.encode
Headers = tuple[tuple[bytes, bytes], ...]

JSON: Final = (b"content-type", b"application/json")
OCTETS: Final = (b"content-type", b"application/octet-stream")
NO_STORE: Final = (b"cache-control", b"no-store")
NO_SNIFF: Final = (b"x-content-type-options", b"nosniff")
_EVENT_STREAM: Final[Headers] = (
    (b"content-type", b"text/event-stream"),
    NO_STORE,
    (b"x-accel-buffering", b"no"),
)
JSON_ONLY: Final[Headers] = (JSON,)


class Reply:
    """A whole answer."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        self.status = status
        self.body = body
        self.headers = headers


class EventStream:
    """An answer that goes on until its source ends: lines of Server-Sent Events. It holds a permit
    of its pool from now on until it is closed."""

    __slots__ = ("_pool", "headers", "lines", "status")

    def __init__(self, lines: AsyncGenerator[bytes, None], pool: Permits) -> None:
        pool.__enter__()
        self._pool = pool
        self.status = 200
        self.headers = _EVENT_STREAM
        self.lines = lines

    async def close(self) -> None:
        try:
            await self.lines.aclose()
        finally:
            self._pool.__exit__(None, None, None)


def ok(answer: Any, *headers: tuple[bytes, bytes]) -> Reply:
    return Reply(200, encode(answer), (JSON, *headers) if headers else JSON_ONLY)


def raw(body: bytes, *headers: tuple[bytes, bytes]) -> Reply:
    """Bytes as they were given; a browser must not guess what they are."""
    return Reply(200, body, (OCTETS, NO_SNIFF, *headers))


NOTHING: Final = Reply(204)
