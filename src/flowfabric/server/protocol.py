"""HTTP as uvicorn speaks it, with an end to patience: a request's head must come in time and stay
small, or the connection is closed."""

import asyncio
from collections import deque
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from flowfabric.errors import InvalidInput
from flowfabric.server.faults import CLOSE
from flowfabric.server.http import ANSWER
from flowfabric.server.replies import Headers, encode

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
_MALFORMED: Final = _refusal(b"400 Bad Request", "request: not HTTP")


class PatientProtocol(HttpToolsProtocol):
    """Beside its patience it spares what most requests do not need: their head comes in one piece,
    so no timer waits for the rest of it; one timer looks after an idle connection however many
    requests came over it; and an answer that is whole is sent in one piece, past the messages of
    ASGI."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=BACKLOG_BYTES)
        self._head_bytes = 0
        self._is_in_head = True
        self._head_timer: asyncio.TimerHandle | None = None
        self._idle_since = 0.0
        # Requests of a connection are answered one after the other, in their order.
        self._unanswered: deque[RequestResponseCycle] = deque()
        self._extensions: dict[str, Any] = {ANSWER: self._answer}
        self._idle_timer = self.loop.call_later(self.timeout_keep_alive, self._look_if_idle)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        self._idle_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_in_head:
            self._expect_head()

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        self._is_in_head = True
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
            self._unanswered.append(self.cycle)
            # Not bound to its cycle: the two would hold each other until they are collected.
            self.scope["extensions"] = self._extensions

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        if self.pipeline:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if not self.transport.is_closing():
            self.flow.resume_reading()
            self._idle_since = self.loop.time()

    def _answer(self, status: int, headers: Headers, body: bytes) -> bool:
        """Send a whole answer; False when it must wait until the client has taken others."""
        cycle = self._unanswered[0]
        if self.flow.write_paused or cycle.disconnected:
            return False
        is_last = CLOSE in headers
        lines = [STATUS_LINE[status], *(b"%b: %b\r\n" % header for header in headers)]
        if not cycle.keep_alive and not is_last:
            is_last = True
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if not head.count(b"\n") == head.count(b"\r") == len(lines):
            raise RuntimeError("a header has a line break in it")
        self.transport.write(b"%b\r\n%b" % (head, body))
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.message_event.set()
        if is_last:
            cycle.keep_alive = False
            self.transport.close()
        self.on_response_complete()
        return True

    def send_400_response(self, msg: str) -> None:
        """In the form of every other error."""
        self.transport.write(_MALFORMED)
        self.transport.close()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._give_up)

    def _head_is_here(self) -> None:
        self._is_in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _look_if_idle(self) -> None:
        now = self.loop.time()
        is_busy = self.cycle is not None and not self.cycle.response_complete
        left = self.timeout_keep_alive - (0.0 if is_busy else now - self._idle_since)
        if left > 0:
            self._idle_timer = self.loop.call_later(left, self._look_if_idle)
        else:
            self._give_up()

    def _give_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()
