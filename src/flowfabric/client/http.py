"""HTTP/1.1 to one server: connections that are kept, each with one request at a time."""

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, Protocol, cast
from urllib.parse import urlsplit

import httptools

CONNECT_S: Final = 10.0
# Proxies close connections that are idle; ours are given up before, so that none is used then.
_IDLE_S: Final = 15.0
_INFORMATIONAL: Final = 200
_PORTS: Final = {"http": 80, "https": 443}
_CLOSED: Final = "the client was closed"
_ENTITY: Final = "content-type: application/json\r\n"


class Response(NamedTuple):
    """A whole response; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Message(NamedTuple):
    """A request as it is sent: the target with its query, header lines, the body."""

    method: str
    target: str
    headers: Mapping[str, str] = {}
    body: bytes | None = None


class RequestFailed(Exception):
    """No response. A request that was not sent may be repeated, whatever it asks for."""

    def __init__(self, reason: str, *, is_sent: bool) -> None:
        super().__init__(reason)
        self.is_sent = is_sent


class Client(Protocol):
    """Sends requests to one server."""

    async def send(self, message: Message, timeout_s: float) -> Response:
        """The response, whatever its status; RequestFailed without one."""
        ...

    async def close(self) -> None: ...


class HttpClient:
    """The connections to one server: as many as there are requests in flight. The one used last is
    used next, so that the others become idle and are closed."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        self._host = parts.hostname or ""
        self._port = parts.port or _PORTS[parts.scheme]
        self._prefix = parts.path
        self._head = _lines({"host": parts.netloc, "user-agent": "flowfabric", **headers})
        self._trust = ssl.create_default_context() if parts.scheme == "https" else None
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._is_closed = False

    async def send(self, message: Message, timeout_s: float) -> Response:
        data = self._encoded(message)
        connection = self._reusable() or await self._connect()
        response = await connection.exchange(data, timeout_s)
        if connection.is_reusable:
            self._keep(connection)
        return response

    async def close(self) -> None:
        self._is_closed = True
        connections = list(self._open)
        for connection in connections:
            connection.abort(_CLOSED)
        await asyncio.gather(*(connection.lost for connection in connections))

    def _encoded(self, message: Message) -> bytes:
        head = f"{message.method} {self._prefix}{message.target} HTTP/1.1\r\n{self._head}"
        if message.headers:
            head += _lines(message.headers)
        body = message.body
        if body is not None:
            return f"{head}{_ENTITY}content-length: {len(body)}\r\n\r\n".encode("latin-1") + body
        if message.method != "GET":
            head += "content-length: 0\r\n"
        return f"{head}\r\n".encode("latin-1")

    def _reusable(self) -> "_Connection | None":
        oldest = time.monotonic() - _IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_reusable and connection.idle_since >= oldest:
                return connection
            connection.abort("it was idle for too long")
        return None

    def _keep(self, connection: "_Connection") -> None:
        now = connection.idle_since = time.monotonic()
        self._idle.append(connection)
        if self._idle[0].idle_since < now - _IDLE_S:
            self._idle.pop(0).abort("it was idle for too long")

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        connection = _Connection(loop.create_future(), self._open.discard)
        try:
            async with asyncio.timeout(CONNECT_S):
                await loop.create_connection(
                    lambda: connection, self._host, self._port, ssl=self._trust
                )
        except TimeoutError:
            raise self._unreached(f"no answer within {CONNECT_S:.0f} seconds") from None
        except OSError as fault:
            raise self._unreached(fault.strerror or str(fault)) from fault
        if self._is_closed:
            connection.abort(_CLOSED)
            raise RequestFailed(_CLOSED, is_sent=False)
        self._open.add(connection)
        return connection

    def _unreached(self, reason: str) -> RequestFailed:
        where = f"[{self._host}]" if ":" in self._host else self._host
        return RequestFailed(f"cannot connect to {where}:{self._port}: {reason}", is_sent=False)


def _lines(headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


class _Connection(asyncio.Protocol):
    """One connection. `lost` is done when it is closed."""

    def __init__(
        self, lost: "asyncio.Future[None]", forget: Callable[["_Connection"], None]
    ) -> None:
        self.lost = lost
        self.idle_since = 0.0
        self._forget = forget
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Response] | None = None
        self._failure = "the server closed the connection"
        self._keeps_alive = True
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._ends_with_connection = False
        self.on_body = self._pieces.append
        self._parser = httptools.HttpResponseParser(self)

    @property
    def is_reusable(self) -> bool:
        transport = self._transport
        return self._keeps_alive and transport is not None and not transport.is_closing()

    async def exchange(self, data: bytes, timeout_s: float) -> Response:
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Response] = loop.create_future()
        self._waiter = waiter
        timer = loop.call_later(timeout_s, self.abort, f"no answer within {timeout_s:.0f} seconds")
        self._transport.write(data)
        try:
            return await waiter
        finally:
            timer.cancel()
            self._waiter = None
            if waiter.cancelled():
                self.abort("the request was cancelled")

    def abort(self, reason: str) -> None:
        self._failure = reason
        self._keeps_alive = False
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, fault: Exception | None) -> None:
        self._transport = None
        self._forget(self)
        if self._waiter is not None and not self._waiter.done():
            if self._ends_with_connection and fault is None and self._keeps_alive:
                self.on_message_complete()
            else:
                self._fail(f"{self._failure}: {fault}" if fault else self._failure)
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        if self._waiter is None:
            self.abort("the server sent what nobody had asked for")
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("the response is malformed HTTP")
            self.abort("the response is malformed HTTP")

    # ---- httptools calls these

    def on_message_begin(self) -> None:
        if self._waiter is None or self._waiter.done():
            self._keeps_alive = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._ends_with_connection = not (
            "content-length" in self._headers or "transfer-encoding" in self._headers
        )

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        headers, content = self._headers, b"".join(self._pieces)
        self._headers = {}
        self._pieces.clear()
        if status < _INFORMATIONAL:
            return
        if not self._parser.should_keep_alive():
            self.abort("the server closes the connection")
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(Response(status, headers, content))

    def _fail(self, reason: str) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(RequestFailed(reason, is_sent=True))
