"""One connection that many callers share: requests are written in one go, answers come in order.

Nobody waits on it for anything but an answer; subscriptions have connections of their own.
"""

import asyncio
import os
import socket
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
# A server that has not answered for so long may be busy, or will never answer again.
SILENT_S: Final = 1.0
# After how many seconds a host that is gone without a word is noticed though nobody asks it
# anything, as on a connection that only listens; where the system lets us say so.
_ALIVE: Final = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_NOT_YET: Final = object()
# What is done with an answer that came when nobody waited for it any more.
Late = Callable[[Any], None]
# What is done with what the server says by itself.
OnPush = Callable[[list[Any]], None]


class Login(msgspec.Struct, frozen=True):
    """Credentials of a server, and for how long its answers are waited for. The password is in no
    rendering."""

    user: str = ""
    password: str = ""
    tls: bool = False
    # Of a certificate authority the system does not know.
    ca_file: str = ""
    connect_s: float = CONNECT_S
    request_s: float = REQUEST_S

    def __repr__(self) -> str:
        return f"Login(user={self.user!r}, tls={self.tls})"


def _hello(login: Login) -> tuple[str, ...]:
    entering = ("AUTH", login.user or "default", login.password) if login.password else ()
    return ("HELLO", "3", *entering, "SETNAME", "flowfabric")


class Connection(asyncio.Protocol):
    def __init__(
        self, name: str = "", on_push: OnPush | None = None, request_s: float = REQUEST_S
    ) -> None:
        self._name = name
        self._request_s = request_s
        self._loop = asyncio.get_running_loop()
        self._reader = libvalkey.Reader(notEnoughData=_NOT_YET)
        self._transport: asyncio.Transport | None = None
        # Each with the instant it was sent.
        self._waiting: deque[tuple[asyncio.Future[Any], float, Late | None]] = deque()
        self._outgoing: list[bytes] = []
        self._is_held = False
        self._watch: asyncio.TimerHandle | None = None
        self._on_push = on_push
        # Called every now and then while the server is silent.
        self.on_silence: Callable[[], None] | None = None
        self.is_open = False
        self.has_timed_out = False
        self.closed: asyncio.Future[None] = self._loop.create_future()

    def send(self, request: bytes, late: Late | None = None) -> asyncio.Future[Any]:
        """The future answer; an error of the server is a result, a lost connection is raised.

        Who says what to do with a late answer does not wait for a server that is silent."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self._transport is None or not self.is_open:
            future.set_exception(self._lost("the connection is closed"))
            return future
        if late is not None and self._is_silent():
            future.set_exception(self._silence())
            return future
        # The first request of a turn goes out at once, so that the server works on it while the
        # next ones are being made; those go out together. Behind a lone one mostly nothing follows.
        if self._is_held:
            self._outgoing.append(request)
        else:
            if self._waiting:
                self._is_held = True
                self._loop.call_soon(self._flush)
            self._transport.write(request)
        self._waiting.append((future, self._loop.time(), late))
        if self._watch is None:
            self._watch = self._loop.call_later(SILENT_S, self._look_at_time)
        return future

    def write(self, request: bytes) -> None:
        """Send what is answered by pushes only."""
        if self._transport is not None:
            self._transport.write(request)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close without waiting until the server has taken what was sent."""
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        self._is_held = False
        outgoing, self._outgoing = self._outgoing, []
        if outgoing:
            self.write(b"".join(outgoing))

    def _look_at_time(self) -> None:
        """An answer that is very late ends the connection: what follows would come in wrong
        order."""
        planned, self._watch = self._watch, None
        if not self._waiting:
            return
        now = self._loop.time()
        age = now - self._waiting[0][1]
        # A process that was suspended has not read answers that may be there.
        has_slept = planned is not None and now - planned.when() > SILENT_S / 2
        if age >= self._request_s and not has_slept:
            self.has_timed_out = True
            self._fail(StoreTimeout(f"valkey {self._name}: no answer within {self._request_s:g} s"))
            self.abort()
            return
        if age >= SILENT_S and not has_slept:
            self._give_up_waiting(now - SILENT_S)
        after = SILENT_S - age if age < SILENT_S else SILENT_S
        self._watch = self._loop.call_later(after, self._look_at_time)

    def _give_up_waiting(self, since: float) -> None:
        """Tell those who do not wait for a silent server. Answers still come in order."""
        for future, sent, late in self._waiting:
            if sent > since:
                break
            if late is not None and not future.done():
                future.set_exception(self._silence())
                future.exception()
        if self.on_silence is not None:
            self.on_silence()

    def _is_silent(self) -> bool:
        return bool(self._waiting) and self._waiting[0][1] < self._loop.time() - SILENT_S

    def _silence(self) -> StoreTimeout:
        return StoreTimeout(f"valkey {self._name}: no answer for {SILENT_S:g} s, it may be frozen")

    def _lost(self, why: object) -> TransportFault:
        return TransportFault(f"valkey {self._name}: {why}")

    # ---- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Other event loops have transports of their own, of no common class.
        self._transport = cast(asyncio.Transport, transport)
        # uvloop writes at once only what is above the limit.
        self._transport.set_write_buffer_limits(high=0)
        _keep_alive(transport.get_extra_info("socket"))
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        reader.feed(data)
        try:
            while (reply := reader.gets()) is not _NOT_YET:
                if self._waiting:
                    future, _, late = self._waiting.popleft()
                    if not future.done():
                        future.set_result(reply)
                    elif late is not None:
                        late(reply)
                elif self._on_push is not None:
                    self._on_push(reply)
        except libvalkey.ProtocolError as fault:
            self._fail(self._lost(fault))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self.is_open = None, False
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._fail(self._lost(exc or "the server closed the connection"))
        if not self.closed.done():
            self.closed.set_result(None)

    def _fail(self, fault: Exception) -> None:
        waiting, self._waiting = self._waiting, deque()
        for future, *_ in waiting:
            if not future.done():
                future.set_exception(fault)
                # A caller may have gone away; its failure is nobody's surprise.
                future.exception()


def _keep_alive(plug: socket.socket | None) -> None:
    if plug is None:
        return
    plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _ALIVE.items():
        if option := getattr(socket, name, None):
            plug.setsockopt(socket.IPPROTO_TCP, option, value)


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


async def connect(host: str, port: int, login: Login, on_push: OnPush | None = None) -> Connection:
    """Connect and enter; a refused login is final, everything else may be tried again."""
    loop = asyncio.get_running_loop()
    try:
        context = _tls(login) if login.tls else None
        async with asyncio.timeout(login.connect_s):
            _, connection = await loop.create_connection(
                lambda: Connection(f"{host}:{port}", on_push, login.request_s),
                host,
                port,
                ssl=context,
            )
            answer = await _entered(connection, login)
    except TimeoutError as fault:
        raise StoreTimeout(
            f"valkey {host}:{port}: no connection within {login.connect_s:g} s"
        ) from fault
    except ssl.SSLCertVerificationError as fault:
        raise ProtocolFault(
            f"valkey: {host}:{port}: its certificate is not trusted: {fault.verify_message}; "
            "name its authority by tls_ca in the URL"
        ) from fault
    except OSError as fault:
        why = os.strerror(fault.errno) if fault.errno else str(fault)
        raise TransportFault(f"valkey {host}:{port}: {why}") from fault
    if isinstance(answer, libvalkey.ReplyError):
        connection.close()
        raise fault_of(answer)
    return connection
