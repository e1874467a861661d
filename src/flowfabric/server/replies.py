"""Replies: a body with status and headers, the reply to an error, and Server-Sent Events."""

import logging
from collections.abc import AsyncGenerator
from typing import Any, Final

import msgspec

from flowfabric.engine.permits import Permits
from flowfabric.errors import (
    Bug,
    FlowFabricError,
    MethodNotAllowed,
    PayloadTooLarge,
    ResourceExhausted,
    TimedOut,
    Unauthorized,
    Unavailable,
)
from flowfabric.operations import answers

_log = logging.getLogger("flowfabric.server")

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


class Reply(msgspec.Struct, frozen=True):
    """A whole answer."""

    status: int
    body: bytes = b""
    headers: Headers = ()


class EventStream:
    """An answer of Server-Sent Events that lasts until its source ends. It holds a permit of its
    pool until it is closed."""

    __slots__ = ("_pool", "_share", "headers", "lines", "status")

    def __init__(self, lines: AsyncGenerator[bytes, None], pool: Permits, share: str = "") -> None:
        pool.enter(share)
        self._pool = pool
        self._share = share
        self.status = 200
        self.headers = _EVENT_STREAM
        self.lines = lines

    async def close(self) -> None:
        try:
            await self.lines.aclose()
        finally:
            self._pool.leave(self._share)


def ok(answer: Any) -> Reply:
    return Reply(200, encode(answer), JSON_ONLY)


def raw(body: bytes, *headers: tuple[bytes, bytes]) -> Reply:
    """Bytes as they are stored; a browser must not guess their type."""
    return Reply(200, body, (OCTETS, NO_SNIFF, *headers))


NOTHING: Final = Reply(204)


# ---- errors

CLOSE: Final = (b"connection", b"close")
_CHALLENGE: Final = (b"www-authenticate", b"Bearer")


def reply_of(fault: FlowFabricError) -> Reply:
    if fault.status is None:
        # The end of a subscription has no status; its cause has one.
        cause = fault.__cause__
        if isinstance(cause, FlowFabricError):
            return reply_of(cause)
        return bug(fault)
    is_internal = fault.status >= 500 and not isinstance(fault, Unavailable)
    if is_internal or not fault.is_for_callers():
        _log.error("%s", fault, exc_info=fault)
    return Reply(fault.status, encode(fault.body()), (JSON, *_headers(fault)))


def bug(fault: BaseException) -> Reply:
    """The reply to an unexpected exception: details go to the log, not to the caller."""
    _log.error("a request failed unexpectedly", exc_info=fault)
    return Reply(500, encode(Bug().body()), (JSON,))


def _headers(fault: FlowFabricError) -> Headers:
    match fault:
        case ResourceExhausted():
            return ((b"retry-after", str(_retry_after(fault)).encode()),)
        case Unauthorized():
            return (_CHALLENGE,)
        case MethodNotAllowed():
            return ((b"allow", fault.detail.encode()),)
        case PayloadTooLarge() | TimedOut():
            # The rest of the body is not read.
            return (CLOSE,)
        case _:
            return ()


def _retry_after(fault: ResourceExhausted) -> int:
    given = fault.details.get("retry_after_ms", 1_000)
    return max(1, -(-given // 1_000)) if isinstance(given, int) else 1


# ---- Server-Sent Events

OPENING: Final = b"retry: 1000\n\n"
HEARTBEAT: Final = b": still here\n\n"
# A comment line at this interval keeps proxies from closing an idle stream.
HEARTBEAT_MS: Final = 15_000


def event(name: str, data: Any, own_id: str = "") -> bytes:
    """One event. JSON has no line breaks of its own, so one data line is enough."""
    head = f"id: {own_id}\nevent: {name}\ndata: " if own_id else f"event: {name}\ndata: "
    return b"%b%b\n\n" % (head.encode(), encode(data))


def failed(fault: FlowFabricError) -> bytes:
    return event("error", fault.body())
