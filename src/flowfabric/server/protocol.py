"""HTTP as uvicorn speaks it, with an end to patience: a request's head must come in time and stay
small, or the connection is closed."""

import asyncio
from collections.abc import Callable
from typing import Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from flowfabric.errors import InvalidInput
from flowfabric.server.replies import encode

HEAD_S: Final = 10.0
HEAD_BYTES: Final = 65_536
# A reader of a stream may fall so far behind before it has to wait for it.
BACKLOG_BYTES: Final = 1_048_576


def _refusal(status: bytes, reason: str) -> bytes:
    body = encode(InvalidInput(reason).body())
    return (
        b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        b"connection: close\r\n\r\n%b" % (status, len(body), body)
    )


_TOO_LARGE: Final = _refusal(b"431 Request Header Fields Too Large", "request head too large")
# Asks for the body, and so must not wait for ours.
_CONTINUE: Final = b"HTTP/1.1 100 "
_MALFORMED: Final = _refusal(b"400 Bad Request", "request: not HTTP")


class _Joined:
    """The transport of one answer, which sends its head together with the beginning of its body:
    one call of the system instead of two."""

    __slots__ = ("_head", "_transport", "close", "is_closing", "write")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head = b""
        self.write: Callable[[bytes], None] = self._hold
        self.close: Callable[[], None] = transport.close
        self.is_closing = transport.is_closing

    def _hold(self, data: bytes) -> None:
        if data.startswith(_CONTINUE):
            self._transport.write(data)
            return
        self._head = data
        self.write = self._join
        self.close = self._end

    def _join(self, data: bytes) -> None:
        self.write = self._transport.write
        self.close = self._transport.close
        self._transport.write(self._head + data)

    def _end(self) -> None:
        """A body that never came."""
        self._transport.write(self._head)
        self._transport.close()


class PatientProtocol(HttpToolsProtocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=BACKLOG_BYTES)
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self._expect_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_is_here()
        if not self.transport.is_closing():
            super().on_headers_complete()
            self.cycle.transport = _Joined(self.transport)  # type: ignore[assignment]

    def send_400_response(self, msg: str) -> None:
        """In the form of every other error."""
        self.transport.write(_MALFORMED)
        self.transport.close()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._give_up)

    def _head_is_here(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()
