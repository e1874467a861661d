"""One HTTP request and its response, as the two callables of ASGI."""

import asyncio
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, Protocol

from flowfabric.server.http import Scope
from flowfabric.server.replies import CLOSE, Headers

# How much of a body is read before the application asks for it.
BODY_BUFFER_BYTES: Final = 65_536

_CHUNKED: Final = (b"transfer-encoding", b"chunked")
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
_LAST_CHUNK: Final = b"0\r\n\r\n"
_STATUS_LINES: Final = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
_WITHOUT_BODY: Final = (204, 304)


class Channel(Protocol):
    """The connection, as an exchange uses it."""

    can_write: asyncio.Event
    is_reading: bool

    def write(self, data: bytes) -> None: ...

    def resume_reading(self) -> None: ...

    def response_ended(self, exchange: "Exchange") -> None: ...


class Exchange:
    """`is_last`: the connection closes after this response."""

    __slots__ = (
        "_body",
        "_buffered_bytes",
        "_channel",
        "_expects_continue",
        "_is_chunked",
        "_is_end_delivered",
        "_missing_bytes",
        "_sends_body",
        "_waiter",
        "has_started",
        "is_complete",
        "is_disconnected",
        "is_ended",
        "is_last",
        "scope",
    )

    def __init__(
        self, channel: Channel, scope: Scope, *, is_last: bool, expects_continue: bool
    ) -> None:
        self._channel = channel
        self.scope = scope
        self.is_last = is_last
        self._expects_continue = expects_continue
        self.is_complete = self.is_disconnected = False
        self.has_started = self.is_ended = False
        self._body: list[bytes] = []
        self._buffered_bytes = 0
        self._is_end_delivered = False
        self._waiter: asyncio.Future[None] | None = None
        self._sends_body = self._is_chunked = False
        # Of a declared content-length; None when the response declares none.
        self._missing_bytes: int | None = None

    # ---- the request

    def feed(self, body: bytes) -> bool:
        """Add to the body; False when reading should pause."""
        self._body.append(body)
        self._buffered_bytes += len(body)
        self._wake()
        return self._buffered_bytes <= BODY_BUFFER_BYTES

    def complete(self) -> None:
        self.is_complete = True
        self._wake()

    def disconnect(self) -> None:
        self.is_disconnected = True
        self._wake()

    async def receive(self) -> Scope:
        if self._expects_continue:
            self._send_continue()
        while not (
            self._buffered_bytes
            or self.is_ended
            or self.is_disconnected
            or (self.is_complete and not self._is_end_delivered)
        ):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if self.is_ended or self.is_disconnected:
            return {"type": "http.disconnect"}
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body, self._buffered_bytes = [], 0
        self._is_end_delivered = self.is_complete
        if not self._channel.is_reading:
            self._channel.resume_reading()
        return {"type": "http.request", "body": body, "more_body": not self.is_complete}

    def _send_continue(self) -> None:
        self._expects_continue = False
        is_awaited = not (self._buffered_bytes or self.is_complete or self.has_started)
        if is_awaited and not self.is_disconnected:
            self._channel.write(_CONTINUE)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ---- the response

    async def send(self, message: Scope) -> None:
        if not self._channel.can_write.is_set():
            await self._channel.can_write.wait()
        if self.is_disconnected:
            return
        kind = message["type"]
        if kind == "http.response.start" and not self.has_started:
            self._start(message["status"], message.get("headers", ()))
        elif kind == "http.response.body" and self.has_started and not self.is_ended:
            self._continue(message.get("body", b""), more=message.get("more_body", False))
        else:
            raise RuntimeError(f"the application sent {kind} out of order")

    def _start(self, status: int, given: Iterable[Iterable[bytes]]) -> None:
        headers: Headers = tuple((name, value) for name, value in given)
        self._sends_body = self.scope["method"] != "HEAD" and status not in _WITHOUT_BODY
        length = dict(headers).get(b"content-length")
        if length is not None:
            self._missing_bytes = int(length)
        elif self._sends_body:
            # Without a length the last chunk ends the response; to HTTP/1.0 the closed connection.
            self._is_chunked = self.scope["http_version"] == "1.1"
            self.is_last = self.is_last or not self._is_chunked
        if self._is_chunked:
            headers = (*headers, _CHUNKED)
        self._channel.write(self.head(status, headers) + b"\r\n")

    def _continue(self, body: bytes, *, more: bool) -> None:
        if self._sends_body:
            self._write_body(body, more=more)
        if not more:
            self.end()

    def _write_body(self, body: bytes, *, more: bool) -> None:
        if self._missing_bytes is not None:
            self._missing_bytes -= len(body)
            if self._missing_bytes < 0 or (self._missing_bytes and not more):
                raise RuntimeError("the response's body differs from its content-length")
        if self._is_chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = chunk if more else chunk + _LAST_CHUNK
        if body:
            self._channel.write(body)

    def head(self, status: int, headers: Headers) -> bytes:
        """All lines of the head but the empty one; with it the response has started."""
        if self._expects_continue and not self.is_complete:
            # The client may send the body or not, so what it sends next has no sure meaning.
            self.is_last = True
        lines = [_STATUS_LINES[status], *[b"%b: %b\r\n" % header for header in headers]]
        if CLOSE in headers:
            self.is_last = True
        elif self.is_last:
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if not head.count(b"\n") == head.count(b"\r") == len(lines):
            raise RuntimeError("a response header contains a line break")
        self.has_started = True
        return head

    def end(self) -> None:
        self.is_ended = True
        self._wake()
        self._channel.response_ended(self)
