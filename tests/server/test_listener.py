"""Any ASGI application on a listener: what clients see of it, and what it learns about them."""

import asyncio
import contextvars
import gc
import logging
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from flowfabric.server.connection import MAX_DISCARDED_BYTES, WRITE_BUFFER_BYTES, Application
from flowfabric.server.decoding import Receive
from flowfabric.server.http import Scope, Send
from tests.server.listening import (
    LOOPS,
    Listening,
    converse,
    listening,
    ready,
    said_until_closed,
    statuses,
)
from tests.tls_doors import make_certificates

GET = b"GET / HTTP/1.1\r\nhost: a\r\n"
ASK = GET + b"\r\n"
LAST = GET + b"connection: close\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: a\r\n"
LARGE = 16 * WRITE_BUFFER_BYTES

On = Callable[..., AbstractAsyncContextManager[Listening]]


@pytest.fixture(params=sorted(LOOPS))
def on(request: pytest.FixtureRequest) -> On:
    """A listener of an application, on each event loop."""

    def start(application: Application, **options: Any) -> AbstractAsyncContextManager[Listening]:
        return listening(ready(application), loop=request.param, **options)

    return start


@pytest.fixture
def quiet(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.ERROR)
    return caplog


async def body_of(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message = await receive()
        assert message["type"] == "http.request"
        body += message["body"]
        more = message["more_body"]
    return body


async def start(send: Send, *headers: tuple[bytes, bytes], status: int = 200) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def piece(send: Send, body: bytes, *, more: bool = False) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})


async def respond(send: Send, body: bytes, status: int = 200) -> None:
    await start(send, (b"content-length", b"%d" % len(body)), status=status)
    await piece(send, body)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, b"%b:%b" % (scope["path"].encode(), await body_of(receive)))


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Responds without a look at the body."""
    await respond(send, b"no", 403)


# ---- requests


async def test_a_body_arrives_whole_in_pieces_and_in_chunks(on: On) -> None:
    body = bytes(range(256)) * 2_000
    chunked = b"".join(
        b"%x;ext=1\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:100], body[100:])
    )
    async with on(echo) as server:
        sent = b"%bcontent-length: %d\r\n\r\n%b" % (POST, len(body), body)
        sent += b"%btransfer-encoding: chunked\r\n\r\n%b0\r\n\r\n%b" % (POST, chunked, LAST)
        said = await converse(server, sent)
    assert statuses(said) == [200, 200, 200]
    assert said.count(b"/:" + body) == 2


async def test_the_scope_is_that_of_asgi(on: On) -> None:
    seen: list[Scope] = []

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await respond(send, b"")

    async with on(note) as server:
        await converse(server, LAST.replace(b" / ", b" /a%20b/%7B?c=%20d ").replace(b"h", b"H", 1))
        await converse(server, LAST.replace(b" / ", b" http://a/b?c#d "))
        address = server.address
    first, second = seen
    assert first.pop("asgi") == {"version": "3.0", "spec_version": "2.3"}
    client = first.pop("client")
    assert (client[0], type(client[1])) == ("127.0.0.1", int)
    assert set(first.pop("extensions")) <= {"flowfabric.answer"}
    assert first == {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "server": address,
        "root_path": "",
        "path": "/a b/{",
        "raw_path": b"/a%20b/%7B",
        "query_string": b"c=%20d",
        "headers": [(b"host", b"a"), (b"connection", b"close")],
    }
    assert (second["path"], second["query_string"]) == ("/b", b"c")


async def test_a_request_behind_another_does_not_inherit_its_context(on: On) -> None:
    variable: contextvars.ContextVar[bytes] = contextvars.ContextVar("variable", default=b"none")

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        found = variable.get()
        variable.set(b"set")
        await respond(send, found)

    async with on(note) as server:
        said = await converse(server, ASK * 3 + LAST)
    assert said.count(b"none") == 4


async def test_a_client_that_may_not_send_the_body_is_not_heard_any_more(on: On) -> None:
    """After a final response instead of `100 Continue` it may send the body or not."""
    expecting = POST + b"content-length: 5\r\nexpect: 100-continue\r\n\r\n"
    async with on(refuse) as server:
        reader, writer = await server.connect()
        writer.write(expecting)
        said = await reader.readuntil(b"no")
        assert statuses(said) == [403]
        assert b"connection: close" in said
        writer.write(ASK)
        assert await said_until_closed(reader) == b""
        writer.close()
    async with on(echo) as server:
        said = await converse(server, expecting.replace(b"1.1", b"1.0") + b"hello")
        assert statuses(said) == [200]
        reader, writer = await server.connect()
        writer.write(expecting)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"hello" + LAST)
        assert statuses(await said_until_closed(reader)) == [200, 200]
        writer.close()


# ---- responses


async def test_a_response_without_a_length_is_chunked_but_not_to_http_1_0(on: On) -> None:
    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send)
        await piece(send, b"one ", more=True)
        await piece(send, b"", more=True)
        await piece(send, b"two")

    async with on(stream) as server:
        new = await converse(server, ASK + LAST)
        old = await converse(server, b"GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n" + ASK)
        head = await converse(server, LAST.replace(b"GET", b"HEAD"))
    assert new.count(b"transfer-encoding: chunked") == 2
    assert new.count(b"\r\n\r\n4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n") == 2
    assert b"chunked" not in old
    assert old.endswith(b"connection: close\r\n\r\none two")
    assert head == b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_a_body_has_none(status: int, on: On) -> None:
    async def empty(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, status=status)
        await piece(send, b"not sent")

    async with on(empty) as server:
        said = await converse(server, ASK + LAST)
    assert statuses(said) == [status, status]
    assert b"chunked" not in said
    assert b"not sent" not in said


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    return


async def failing(scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError("secret")


@pytest.mark.parametrize("application", [nothing, failing])
async def test_an_application_that_does_not_respond_gives_500(
    application: Application, on: On, quiet: pytest.LogCaptureFixture
) -> None:
    async with on(application) as server:
        said = await converse(server, ASK + ASK)
    assert statuses(said) == [500]
    assert b"connection: close" in said
    assert b"secret" not in said
    assert "a request failed unexpectedly" in quiet.text


async def half(send: Send) -> None:
    await start(send, (b"content-length", b"10"))
    await piece(send, b"12345", more=True)


async def short(send: Send) -> None:
    await start(send, (b"content-length", b"10"))
    await piece(send, b"12345")


async def long(send: Send) -> None:
    await start(send, (b"content-length", b"1"))
    await piece(send, b"12345")


async def twice(send: Send) -> None:
    await start(send)
    await start(send)


@pytest.mark.parametrize("responding", [half, short, long, twice])
async def test_an_incomplete_response_is_cut(
    responding: Callable[[Send], Any], on: On, quiet: pytest.LogCaptureFixture
) -> None:
    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await responding(send)

    async with on(application) as server:
        reader, writer = await server.connect()
        writer.write(ASK + ASK)
        with pytest.raises(ConnectionResetError):
            await asyncio.wait_for(reader.read(), 30)
        writer.close()
    assert "a request failed unexpectedly" in quiet.text


# ---- clients that go, or do not read


async def test_every_unanswered_request_learns_that_its_client_has_gone(on: On) -> None:
    begun, ended = threading.Event(), threading.Event()
    messages: list[str] = []

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        await body_of(receive)
        begun.set()
        messages.append((await receive())["type"])
        await respond(send, b"to nobody")
        ended.set()

    async with on(wait) as server:
        for behind in (b"", ASK, POST + b"content-length: 5\r\n\r\nab"):
            _, writer = await server.connect()
            writer.write(ASK + behind)
            assert await asyncio.to_thread(begun.wait, 30)
            writer.transport.abort()
            assert await asyncio.to_thread(ended.wait, 30)
            begun.clear()
            ended.clear()
    assert messages == ["http.disconnect"] * 3


async def flood(scope: Scope, receive: Receive, send: Send, *, is_lost: threading.Event) -> None:
    """More than any buffer holds."""
    await body_of(receive)
    await start(send, (b"content-length", b"%d" % (2 * LARGE)))
    await piece(send, b"x" * LARGE, more=True)
    assert (await receive())["type"] == "http.disconnect"
    is_lost.set()


async def test_a_client_that_does_not_read_is_reset(
    on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.server.connection.STALLED_S", 0.5)
    is_lost = threading.Event()
    async with on(partial(flood, is_lost=is_lost)) as server:
        _, port = server.address
        client = socket.create_connection(("127.0.0.1", port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        client.sendall(ASK)
        assert await asyncio.to_thread(is_lost.wait, 30)
        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(read_all, client)
        client.close()


async def test_a_client_that_does_not_read_its_last_response_is_reset(
    on: On, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.server.connection.STALLED_S", 0.5)

    responded = threading.Event()

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, b"x" * LARGE)
        responded.set()

    async with on(large) as server:
        _, port = server.address
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(LAST)
        assert await asyncio.to_thread(responded.wait, 30)
        server.grace_s = 25
        # It ends when no connection is left.
        await server.stop()
        with pytest.raises(ConnectionResetError):
            await asyncio.to_thread(read_all, client)
        client.close()


def read_all(client: socket.socket) -> int:
    size = 0
    while data := client.recv(65_536):
        size += len(data)
    return size


# ---- bodies nobody reads


async def test_the_rest_of_a_body_is_discarded_and_the_connection_kept(on: On) -> None:
    body = b"x" * (MAX_DISCARDED_BYTES // 2)
    async with on(refuse) as server:
        sent = b"%bcontent-length: %d\r\n\r\n%b" % (POST, len(body), body)
        assert statuses(await converse(server, sent * 3 + LAST)) == [403] * 4


async def test_a_client_that_sends_far_more_than_anybody_reads_is_cut(on: On) -> None:
    async with on(refuse) as server:
        reader, writer = await server.connect()
        writer.write(POST + b"content-length: %d\r\n\r\n" % (100 * MAX_DISCARDED_BYTES))
        assert await reader.readuntil(b"no")
        # The buffers of the kernel take some, too.
        with pytest.raises(ConnectionError):
            await send_much(writer, 10 * MAX_DISCARDED_BYTES)
        writer.transport.abort()


async def send_much(writer: asyncio.StreamWriter, size: int) -> None:
    async with asyncio.timeout(30):
        for _ in range(size // 65_536):
            writer.write(b"x" * 65_536)
            await writer.drain()


async def test_a_client_that_still_sends_can_read_the_last_response(on: On) -> None:
    """A connection that is closed with unread input is reset, and the response with it."""

    async def close(scope: Scope, receive: Receive, send: Send) -> None:
        await start(send, (b"connection", b"close"), (b"content-length", b"2"), status=413)
        await piece(send, b"no")

    body = b"x" * (MAX_DISCARDED_BYTES // 2)
    async with on(close) as server:
        _, port = server.address
        client = socket.create_connection(("127.0.0.1", port))
        await asyncio.to_thread(client.sendall, POST + b"content-length: %d\r\n\r\n" % len(body))
        # Over many segments, so that most of it arrives after the response was sent.
        for at in range(0, len(body), 8_192):
            await asyncio.to_thread(client.sendall, body[at : at + 8_192])
        said = await asyncio.to_thread(client.recv, 65_536)
        assert said.startswith(b"HTTP/1.1 413 ")
        assert said.endswith(b"no")
        client.close()


# ---- stopping


async def test_a_stop_ends_idle_connections_and_lets_requests_finish(on: On) -> None:
    begun, may_end = threading.Event(), threading.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/slow":
            begun.set()
            await asyncio.to_thread(may_end.wait, 30)
        await respond(send, b"done")

    async with on(slow) as server:
        idle_reader, idle = await server.connect()
        idle.write(ASK)
        await idle_reader.readuntil(b"done")
        half_reader, half_sent = await server.connect()
        half_sent.write(GET)
        reader, writer = await server.connect()
        writer.write(ASK.replace(b" / ", b" /slow ") + ASK)
        assert await asyncio.to_thread(begun.wait, 30)
        server.grace_s = 600
        server.begin_stop()
        async with asyncio.timeout(30):
            assert await idle_reader.read() == b""
            assert await half_reader.read() == b""
        with pytest.raises(ConnectionError):
            await server.connect()
        # Requests that were received are answered, later ones are not read.
        writer.write(ASK)
        may_end.set()
        said = await said_until_closed(reader)
        for one in (idle, half_sent, writer):
            one.close()
    assert statuses(said) == [200, 200]
    assert said.count(b"connection: close") == 1


@pytest.mark.parametrize("loop", sorted(LOOPS))
async def test_requests_that_outlast_the_grace_period_are_cancelled(
    loop: str, caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Event()
    ends: list[str] = []
    ends_at_stop: list[str] = []

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("cancelled")

    @asynccontextmanager
    async def booting() -> AsyncIterator[Application]:
        yield endless
        ends_at_stop.extend(ends)

    async with listening(booting, loop=loop) as server:
        reader, writer = await server.connect()
        writer.write(ASK)
        assert await asyncio.to_thread(begun.wait, 30)
        server.grace_s = 0.1
        await server.stop()
        assert await said_until_closed(reader) == b""
        writer.close()
    assert ends_at_stop == ["cancelled"]
    assert "1 requests on 1 connections still in progress after 0.1 s" in caplog.text


# ---- other kinds of sockets


async def test_tls(on: On, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "tls.pem", tmp_path / "tls.key")
    trusted = ssl.create_default_context(cafile=tmp_path / "ca.pem")

    async def scheme(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, scope["scheme"].encode())

    async with on(scheme, tls=context) as server:
        reader, writer = await asyncio.open_connection(*server.address, ssl=trusted)
        writer.write(ASK + LAST)
        said = await said_until_closed(reader)
        writer.close()
        reader, writer = await asyncio.open_connection(*server.address, ssl=trusted)
        writer.write(b"BAD\r\n\r\n")
        assert (await reader.readline()).startswith(b"HTTP/1.1 400 ")
        writer.close()
    assert statuses(said) == [200, 200]
    assert said.count(b"https") == 2


async def test_a_unix_socket(on: On, tmp_path: Path) -> None:
    path = str(tmp_path / "http.sock")
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    bound.bind(path)

    async def names(scope: Scope, receive: Receive, send: Send) -> None:
        await respond(send, repr((scope["server"], scope["client"])).encode())

    async with on(names, bound=bound) as server:
        assert server.address == path
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(LAST)
        said = await said_until_closed(reader)
        writer.close()
    assert said.endswith(repr(((path, None), None)).encode())


# ---- memory


async def test_a_connection_leaves_nothing_to_the_collector() -> None:
    """On uvloop; the transports of asyncio refer to themselves, and so do its streams."""

    def open_and_close(times: int) -> None:
        for _ in range(times):
            with socket.create_connection(server.address) as client:
                client.sendall(LAST)
                read_all(client)

    async with listening(ready(echo)) as server:
        await asyncio.to_thread(open_and_close, 10)
        gc.collect()
        gc.disable()
        try:
            await asyncio.to_thread(open_and_close, 40)
            assert gc.collect() < 40
        finally:
            gc.enable()
