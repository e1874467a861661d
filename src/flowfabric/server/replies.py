"""What a handler answers: a body with its status and headers, or a stream of events."""

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from flowfabric.core.tokens import token_to_text
from flowfabric.engine.permits import Permits

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
_JSON_ONLY: Final[Headers] = (JSON,)

encode: Final = msgspec.json.Encoder(enc_hook=token_to_text).encode


class Reply:
    """A whole answer."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        self.status = status
        self.body = body
        self.headers = headers


class EventStream:
    """An answer that goes on until its source ends: lines of Server-Sent Events."""

    __slots__ = ("headers", "lines", "status")

    def __init__(self, lines: AsyncIterator[bytes]) -> None:
        self.status = 200
        self.headers = _EVENT_STREAM
        self.lines = lines


def counted(pool: Permits, lines: AsyncIterator[bytes]) -> EventStream:
    """A stream that holds a permit of the pool from now on until it ends."""
    pool.__enter__()

    async def held() -> AsyncIterator[bytes]:
        try:
            async for line in lines:
                yield line
        finally:
            pool.__exit__(None, None, None)

    return EventStream(held())


def ok(answer: Any, *headers: tuple[bytes, bytes]) -> Reply:
    return Reply(200, encode(answer), (JSON, *headers) if headers else _JSON_ONLY)


def created(answer: Any, *headers: tuple[bytes, bytes]) -> Reply:
    return Reply(201, encode(answer), (JSON, *headers) if headers else _JSON_ONLY)


def raw(body: bytes) -> Reply:
    """Bytes as they were given; a browser must not guess what they are."""
    return Reply(200, body, (OCTETS, NO_SNIFF))


NOTHING: Final = Reply(204)
