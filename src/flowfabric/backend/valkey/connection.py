"""One connection that many callers share: requests are written in one go, answers come in order.

Nobody waits on it for anything but an answer; subscriptions have connections of their own.
"""

import asyncio
import os
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final, cast

import libvalkey
import msgspec

from flowfabric.backend.valkey.faults import fault_of
from flowfabric.errors import ProtocolFault, StoreTimeout, TransportFault

CONNECT_S: Final = 10.0
REQUEST_S: Final = 5.0
_NOT_YET: Final = object()


class Login(msgspec.Struct, frozen=True):
    """How a server is entered. The password is in no rendering."""

    user: str = ""
    password: str = ""
    tls: bool = False
    # Of a certificate authority the system does not know.
    ca_file: str = ""

    def __repr__(self) -> str:
        return f"Login(user={self.user!r}, tls={self.tls})"


def _hello(login: Login) -> tuple[str, ...]:
    entering = ("AUTH", login.user or "default", login.password) if login.password else ()
    return ("HELLO", "3", *entering, "SETNAME", "flowfabric")


class Connection(asyncio.Protocol):
    def __init__(self, on_push: Callable[[list[Any]], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = libvalkey.Reader(notEnoughData=_NOT_YET)
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._outgoing: list[bytes] = []
        self._is_held = False
        self._watch: asyncio.TimerHandle | None = None
        self._on_push = on_push
        self.is_open = False
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def send(self, request: bytes) -> asyncio.Future[Any]:
        """The future answer; an error of the server is a result, a lost connection is raised."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self.is_open:
            future.set_exception(TransportFault("valkey: the connection is closed"))
            return future
        # The first request of a turn goes out at once, so that the server works on it while the
        # next ones are being made; those go out together.
        if self._is_held:
            self._outgoing.append(request)
        else:
            self._is_held = True
            self._loop.call_soon(self._flush)
            self.write(request)
        self._waiting.append((future, self._loop.time() + REQUEST_S))
        if self._watch is None:
            self._watch = self._loop.call_later(REQUEST_S, self._look_at_time)
        return future

    def write(self, request: bytes) -> None:
        """Send what is answered by pushes only."""
        if self._transport is not None:
            self._transport.write(request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _flush(self) -> None:
        self._is_held = False
        outgoing, self._outgoing = self._outgoing, []
        if outgoing:
            self.write(b"".join(outgoing))

    def _look_at_time(self) -> None:
        """An answer that is late ends the connection: what follows would come in wrong order."""
        self._watch = None
        if not self._waiting:
            return
        left = self._waiting[0][1] - self._loop.time()
        if left > 0:
            self._watch = self._loop.call_later(left, self._look_at_time)
            return
        self._fail(StoreTimeout(f"valkey: no answer within {REQUEST_S:g} s"))
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Other event loops have transports of their own, of no common class.
        self._transport = cast(asyncio.Transport, transport)
        # uvloop writes at once only what is above the limit.
        self._transport.set_write_buffer_limits(high=0)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not _NOT_YET:
                if self._waiting:
                    future, _ = self._waiting.popleft()
                    if not future.done():
                        future.set_result(reply)
                elif self._on_push is not None:
                    self._on_push(reply)
        except libvalkey.ProtocolError as fault:
            self._fail(TransportFault(f"valkey: {fault}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self.is_open = None, False
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._fail(TransportFault(f"valkey: {exc or 'the server closed the connection'}"))
        if not self.closed.done():
            self.closed.set_result(None)

    def _fail(self, fault: Exception) -> None:
        waiting, self._waiting = self._waiting, deque()
        for future, _ in waiting:
            if not future.done():
                future.set_exception(fault)
                # A caller may have gone away; its failure is nobody's surprise.
                future.exception()


async def _entered(connection: Connection, login: Login) -> Any:
    try:
        return await connection.send(libvalkey.pack_command(_hello(login)))
    except BaseException:
        connection.close()
        raise


def _tls(login: Login) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=login.ca_file or None)
    except OSError as fault:
        raise ProtocolFault(f"valkey: tls_ca: {login.ca_file}: {fault}") from fault


async def connect(
    host: str, port: int, login: Login, on_push: Callable[[list[Any]], None] | None = None
) -> Connection:
    """Connect and enter; a refused login is final, everything else may be tried again."""
    loop = asyncio.get_running_loop()
    try:
        context = _tls(login) if login.tls else None
        async with asyncio.timeout(CONNECT_S):
            _, connection = await loop.create_connection(
                lambda: Connection(on_push), host, port, ssl=context
            )
            answer = await _entered(connection, login)
    except TimeoutError as fault:
        raise StoreTimeout(f"valkey: no connection within {CONNECT_S:g} s") from fault
    except ssl.SSLCertVerificationError as fault:
        raise ProtocolFault(
            f"valkey: {host}:{port}: its certificate is not trusted: {fault.verify_message}; "
            "name its authority by tls_ca in the URL"
        ) from fault
    except OSError as fault:
        why = os.strerror(fault.errno) if fault.errno else str(fault)
        raise TransportFault(f"valkey: {host}:{port}: {why}") from fault
    if isinstance(answer, libvalkey.ReplyError):
        connection.close()
        raise fault_of(answer)
    return connection
