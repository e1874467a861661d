"""One HTTP/1.1 connection: the order of responses, and limits on buffered bytes and on time."""

import asyncio
import contextvars
import logging
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, cast

from flowfabric.errors import Bug
from flowfabric.server.decoding import Receive
from flowfabric.server.exchange import Exchange
from flowfabric.server.http import ANSWER, Scope, Send
from flowfabric.server.parser import RequestParser
from flowfabric.server.replies import CLOSE, JSON, Headers, encode

_log = logging.getLogger("flowfabric.server")

# How long a client may take to send a head, or what is left of a request after its response.
INPUT_S: Final = 10.0
# How much input is discarded after a response, and after a refusal.
MAX_DISCARDED_BYTES: Final = 2_097_152
MAX_REFUSED_BYTES: Final = 262_144
# How many requests may wait for the response to an earlier one; the last of them closes.
MAX_PIPELINED: Final = 32
# How much unsent output a connection may have before the application has to wait.
WRITE_BUFFER_BYTES: Final = 1_048_576
# A client with unsent output must read so much within this time.
MIN_READ_BYTES: Final = 16_384
STALLED_S: Final = 30.0

_NO_LINGER: Final = struct.pack("ii", 1, 0)
_BUG: Final = encode(Bug().body())
_BUG_HEADERS: Final[Headers] = (JSON, CLOSE, (b"content-length", b"%d" % len(_BUG)))

Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Registry(Protocol):
    """The open connections of a listener, and the tasks that serve their requests."""

    application: Application
    idle_s: float
    tasks: set[asyncio.Task[None]]

    def opened(self, connection: "Connection") -> None: ...

    def closed(self, connection: "Connection") -> None: ...


class Connection(asyncio.Protocol):
    """Responses are sent in the order of their requests: `_current` is served, the others wait.
    `_incoming` is the newest of them as long as its body is not complete."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._loop = asyncio.get_running_loop()
        # Every request gets a copy of it, also one that begins in the task of its predecessor.
        self._context = contextvars.copy_context()
        self._current: Exchange | None = None
        self._waiting: deque[Exchange] = deque()
        self._incoming: Exchange | None = None
        self._refusal = b""
        self._ignores_input = False
        self.is_reading = True
        self._discarded_bytes = 0
        self._max_discarded_bytes = MAX_DISCARDED_BYTES
        self._extensions: dict[str, Any] = {ANSWER: self._respond}
        self.can_write = asyncio.Event()
        self.can_write.set()
        self._written_bytes = self._read_bytes = 0

    # ---- the transport's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Transports of other event loops have no common class.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._parser = RequestParser(self, self._shared_scope())
        # When the present wait for the client began, and when it last read enough.
        self._waiting_since = self._read_at = self._loop.time()
        self._registry.opened(self)

    def _shared_scope(self) -> Scope:
        transport = self._transport
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "scheme": "https" if transport.get_extra_info("sslcontext") else "http",
            "server": _address(transport.get_extra_info("sockname")),
            "client": _address(transport.get_extra_info("peername")),
            "root_path": "",
            "extensions": self._extensions,
        }

    def connection_lost(self, exc: Exception | None) -> None:
        for exchange in (self._current, self._incoming):
            if exchange is not None:
                exchange.disconnect()
        self._current = self._incoming = None
        self._waiting.clear()
        self.can_write.set()
        # Both refer back to this connection.
        self._parser.close()
        self._extensions.clear()
        self._registry.closed(self)

    def data_received(self, data: bytes) -> None:
        if self._ignores_input:
            self._discard(len(data))
            return
        was_in_head = self._parser.is_in_head
        refusal = self._parser.feed(data)
        if refusal:
            self._refuse(refusal)
        elif self._parser.is_in_head and not was_in_head:
            self._waiting_since = self._loop.time()

    def pause_writing(self) -> None:
        self.can_write.clear()

    def resume_writing(self) -> None:
        self.can_write.set()

    # ---- the parser's callbacks

    def request_received(self, scope: Scope, *, is_last: bool, expects_continue: bool) -> None:
        exchange = Exchange(self, scope, is_last=is_last, expects_continue=expects_continue)
        self._incoming = exchange
        self._discarded_bytes = 0
        if self._current is None:
            self._begin(exchange)
        else:
            self._waiting.append(exchange)
            if len(self._waiting) == MAX_PIPELINED:
                exchange.is_last = True

    def body_received(self, body: bytes) -> bool:
        assert self._incoming is not None
        if self._incoming.is_ended:
            self._discard(len(body))
        elif not self._incoming.feed(body):
            self._pause_reading()
        return not self._transport.is_closing()

    def request_ended(self) -> bool:
        assert self._incoming is not None
        exchange, self._incoming = self._incoming, None
        exchange.complete()
        self._ignores_input = exchange.is_last
        return not exchange.is_last

    # ---- requests

    def _begin(self, exchange: Exchange) -> None:
        self._current = exchange
        task = self._loop.create_task(self._serve(exchange), context=self._context.copy())
        self._registry.tasks.add(task)
        task.add_done_callback(self._registry.tasks.discard)

    async def _serve(self, exchange: Exchange) -> None:
        try:
            await self._registry.application(exchange.scope, exchange.receive, exchange.send)
            if not (exchange.is_ended or exchange.is_disconnected):
                raise RuntimeError("the application returned without a complete response")
        except Exception as fault:
            _log.error("a request failed unexpectedly", exc_info=fault)
            await self._fail(exchange)

    async def _fail(self, exchange: Exchange) -> None:
        await self.can_write.wait()
        if exchange.is_ended or exchange.is_disconnected:
            return
        if exchange.has_started:
            # Only a reset tells every client that the response is incomplete.
            self.abort()
        else:
            self._respond(500, _BUG_HEADERS, _BUG)

    def _respond(self, status: int, headers: Headers, body: bytes) -> bool:
        """Send a whole response; False when it must wait for the client to read earlier ones."""
        exchange = self._current
        if exchange is None or not self.can_write.is_set():
            return False
        response = b"%b\r\n%b" % (exchange.head(status, headers), body)
        self._written_bytes += len(response)
        self._transport.write(response)
        exchange.end()
        return True

    def response_ended(self, exchange: Exchange) -> None:
        self._current = None
        if exchange.is_last:
            self._close()
        elif self._waiting:
            self._begin(self._waiting.popleft())
        elif self._refusal:
            self._send_refusal()
        else:
            self._waiting_since = self._loop.time()
            self.resume_reading()

    def _refuse(self, refusal: bytes) -> None:
        """Send a refusal when the requests before it are answered."""
        self._ignores_input = True
        self._refusal = refusal
        self._discarded_bytes, self._max_discarded_bytes = 0, MAX_REFUSED_BYTES
        refused, self._incoming = self._incoming, None
        if refused is not None and refused.has_started:
            # A refusal would look like the response to another request.
            refused.disconnect()
            self.abort()
            return
        if refused is not None:
            refused.disconnect()
            if refused is self._current:
                self._current = None
            else:
                self._waiting.pop()
        if self._current is None:
            self._send_refusal()

    def _send_refusal(self) -> None:
        self.write(self._refusal)
        self._close()

    # ---- reading and writing

    def write(self, data: bytes) -> None:
        self._written_bytes += len(data)
        self._transport.write(data)

    def _pause_reading(self) -> None:
        self.is_reading = False
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_reading and not self._transport.is_closing():
            self.is_reading = True
            self._transport.resume_reading()

    def _discard(self, size: int) -> None:
        self._discarded_bytes += size
        if self._discarded_bytes > self._max_discarded_bytes:
            if self._current is None:
                self._transport.close()
            else:
                self._pause_reading()

    # ---- the end

    def _close(self) -> None:
        """Close after the last response. The kernel resets a connection that is closed while the
        client sends, and a reset destroys what the client has not read; so the client gets time to
        read and to close."""
        self._ignores_input = True
        is_sending = self._incoming is not None or self._refusal or self._discarded_bytes
        if not is_sending or self._discarded_bytes > self._max_discarded_bytes:
            self._transport.close()
        elif not self._transport.is_closing():
            self._waiting_since = self._loop.time()
            self.resume_reading()
            if self._transport.can_write_eof():
                self._transport.write_eof()

    def drain(self) -> None:
        """Close when the requests received so far are answered."""
        newest = self._waiting[-1] if self._waiting else self._current
        if newest is None:
            self._transport.close()
        else:
            newest.is_last = True

    def abort(self) -> None:
        """Close at once. Without lingering the kernel drops unsent output, too."""
        own = self._transport.get_extra_info("socket")
        if own is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    def sweep(self, now: float) -> None:
        """End what takes too long."""
        unsent = self._transport.get_write_buffer_size()
        read = self._written_bytes - unsent
        if not unsent or read - self._read_bytes >= MIN_READ_BYTES:
            self._read_bytes, self._read_at = read, now
        elif now - self._read_at > STALLED_S:
            self.abort()
            return
        if unsent or self._current is not None:
            self._waiting_since = now
        elif now - self._waiting_since > self._max_wait_s():
            self._transport.close()

    def _max_wait_s(self) -> float:
        is_sending = self._parser.is_in_head or self._incoming is not None or self._ignores_input
        return min(INPUT_S, self._registry.idle_s) if is_sending else self._registry.idle_s


def _address(name: object) -> tuple[str, int | None] | None:
    """As ASGI writes addresses of TCP and of unix sockets."""
    match name:
        case (str(host), int(port), *_):
            return host, port
        case str(path) if path:
            return path, None
        case _:
            return None
