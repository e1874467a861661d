"""Connections that stay: requests behind each other, long answers, and nobody who says anything."""

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest

from flowfabric.operations.declaration import ANY
from flowfabric.server import Http, booted
from flowfabric.server.boot import bound_socket, dev
from flowfabric.server.call import Call
from flowfabric.server.connection import WRITE_BUFFER_BYTES
from flowfabric.server.listener import Listener
from flowfabric.server.replies import EventStream, Reply, ok
from flowfabric.server.route import Routes
from flowfabric.server.routes import ROUTES

KEEP_ALIVE_S = 1
LARGE = 16 * WRITE_BUFFER_BYTES
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Ends]]

routes = Routes()
TAKEN: list[object] = []


@routes.add("GET /number/{attempt_index}", ANY, {200: str})
async def number(call: Call[None, None]) -> Reply:
    """Answers the later ones sooner, if it is let."""
    asked = call.path["attempt_index"]
    for _ in range(10 - int(asked)):
        await asyncio.sleep(0)
    return ok(asked)


@routes.add("GET /large", ANY, {200: str})
async def large(call: Call[None, None]) -> Reply:
    """More than may wait for a client that does not read."""
    TAKEN.append(call)
    return Reply(200, b"x" * LARGE)


@routes.add("GET /lines", ANY, {200: str})
async def lines(call: Call[None, None]) -> Reply:
    """A header that would be two."""
    return Reply(200, b"", ((b"x-one", b"1\r\nx-two: 2"),))


@routes.add("GET /long", ANY, {200: str})
async def long(call: Call[None, None]) -> Reply:
    """Takes longer than a connection may be idle."""
    await asyncio.sleep(1.5 * KEEP_ALIVE_S)
    return ok("at last")


@routes.add("GET /stream", ANY, {200: str})
async def stream(call: Call[None, None]) -> EventStream:
    """Events without end, as long as somebody is there."""

    async def lines() -> AsyncGenerator[bytes, None]:
        async with call.cancellable_wait() as wait:
            while not wait.is_over:
                yield b": still here\n\n" * 5_000
                await asyncio.sleep(0)

    return EventStream(lines(), call.services.sse)


@pytest.fixture
def keep_alive_s() -> int:
    """Longer than a test takes, however slow the machine is."""
    return 600


@pytest.fixture
async def connect(keep_alive_s: int) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:
        booting = await stack.enter_async_context(booted(dev()))
        listening = bound_socket(booting.services.settings)
        listener = Listener(Http(booting.services, (*routes, *ROUTES)), idle_s=keep_alive_s)
        await listener.start(listening)
        stack.push_async_callback(listener.stop, 5)

        async def opened() -> Ends:
            reader, writer = await asyncio.open_connection(*listening.getsockname())
            stack.push_async_callback(_closed, writer)
            return reader, writer

        yield opened


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of one answer."""
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = (
        int(line.partition(b":")[2])
        for line in head.split(b"\r\n")
        if line.startswith(b"content-length:")
    )
    return head, await reader.readexactly(length)


async def test_requests_sent_ahead_are_answered_in_their_order(connect: Connect) -> None:
    reader, writer = await connect()
    writer.write(b"".join(get(f"/number/{n}") for n in range(10)))
    bodies = [(await answer(reader))[1] for _ in range(10)]
    assert bodies == [b'"%d"' % n for n in range(10)]


async def test_answers_wait_for_a_client_that_reads_late(connect: Connect) -> None:
    TAKEN.clear()
    reader, writer = await connect()
    writer.write(get("/large") * 4 + get("/number/1"))
    other_reader, other = await connect()
    for _ in range(20):
        other.write(get("/number/1"))
        await answer(other_reader)
    assert len(TAKEN) == 2, "the first is being sent, the second is ready"
    for _ in range(4):
        head, body = await answer(reader)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        assert len(body) == LARGE
    assert (await answer(reader))[1] == b'"1"'


async def test_a_stream_nobody_reads_ends_without_an_error(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("flowfabric.server.connection.STALLED_S", 0.5)
    reader, writer = await connect()
    writer.write(get("/stream"))
    await reader.readuntil(b": still here")
    other_reader, other = await connect()
    figures = b""
    async with asyncio.timeout(30):
        while b"ff_sse_streams_open 0.0" not in figures:
            other.write(get("/metrics"))
            _, figures = await answer(other_reader)
    assert [one.message for one in caplog.records if one.levelno >= logging.ERROR] == []


async def test_a_header_cannot_become_two(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    reader, writer = await connect()
    writer.write(get("/lines"))
    head, _ = await answer(reader)
    assert head.startswith(b"HTTP/1.1 500 ")
    assert b"x-two" not in head


@pytest.mark.parametrize("keep_alive_s", [KEEP_ALIVE_S])
async def test_an_idle_connection_is_closed_and_a_busy_one_is_not(connect: Connect) -> None:
    reader, writer = await connect()
    loop = asyncio.get_running_loop()
    began = loop.time()
    writer.write(get("/long"))
    assert (await answer(reader))[1] == b'"at last"'
    async with asyncio.timeout(20):
        assert await reader.read() == b""
    assert loop.time() - began > 2 * KEEP_ALIVE_S


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    "asked",
    [
        get("/v1/partitions"),
        get("/v1/executions/{fp:1}:00000000-0000-4000-8000-000000000000"),
        post("/v1/executions", b'{"lane_id":"side","execution_kind":"greet"}'),
        post(
            "/v1/worker/claim",
            b'{"worker_id":"w","worker_instance_id":"w-1","lanes":["none"],"wait_ms":3}',
        ),
    ],
    ids=["read", "refusal", "submit", "wait"],
)
async def test_a_request_leaves_nothing_to_the_collector(connect: Connect, asked: bytes) -> None:
    """What refers to itself piles up until everybody waits for the collector."""
    reader, writer = await connect()

    async def ask(times: int) -> None:
        for _ in range(times):
            writer.write(asked)
            head = await reader.readuntil(b"\r\n\r\n")
            if b" 204 " not in head[:13]:
                await reader.readexactly(
                    int(head.lower().partition(b"content-length: ")[2].split()[0])
                )

    await ask(10)
    gc.collect()
    gc.disable()
    try:
        await ask(40)
        assert gc.collect() < 40
    finally:
        gc.enable()
