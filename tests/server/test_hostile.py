"""Clients that mean no good, or know no better: nobody else notices them."""

import asyncio
import resource
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.server.processes import Process, client, running

IDLE = 2_500
SLOW = 200
HEAD = (
    b"POST /v1/executions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    b"content-type: application/json\r\ncontent-length: 1000\r\n\r\n"
)
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]

SMUGGLED = (
    b"POST /v1/executions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 5\r\n"
    b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"
)


@asynccontextmanager
async def connections(process: Process, count: int) -> AsyncIterator[list[Ends]]:
    """So many open connections, a hundred at a time."""
    opened: list[Ends] = []
    try:
        while len(opened) < count:
            some = range(min(100, count - len(opened)))
            opened += await asyncio.gather(
                *(asyncio.open_connection("127.0.0.1", process.port) for _ in some)
            )
        yield opened
    finally:
        for _, writer in opened:
            writer.transport.abort()


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for both ends of thousands of connections; the server takes its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = IDLE + SLOW + 1_000
    assert hard == resource.RLIM_INFINITY or hard >= needed
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_thousands_that_say_nothing_and_hundreds_that_never_end_keep_nobody_out(
    many_files: None, tmp_path: Path
) -> None:
    async with (
        running(tmp_path) as process,
        client(process) as http,
        connections(process, SLOW) as slow,
        connections(process, IDLE) as idle,
    ):
        for _, writer in slow:
            writer.write(HEAD + b"{")
        for _ in range(5):
            answers = await asyncio.gather(*(http.get("/v1/partitions") for _ in range(100)))
            assert {answer.status_code for answer in answers} == {200}
            for _, writer in slow:
                writer.write(b" ")
        said = await asyncio.wait_for(asyncio.gather(*(one.read() for one, _ in idle)), 30)
        assert set(said) == {b""}
        told = await asyncio.wait_for(asyncio.gather(*(one.read() for one, _ in slow)), 50)
        assert {answer.split(b" ")[1] for answer in told} == {b"504"}
        assert all(b"connection: close" in answer.lower() for answer in told)
        assert (await http.get("/readyz")).status_code == 200
        figures = (await http.get("/metrics")).text
        assert 'status="500"' not in figures


async def test_a_client_that_never_ends_its_head_is_sent_away(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
        silent_reader, silent = await asyncio.open_connection("127.0.0.1", process.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nx-slow: ")
        await writer.drain()
        for one in (reader, silent_reader):
            assert await asyncio.wait_for(one.read(), 20) == b""
        for closing in (writer, silent):
            closing.close()


BROKEN = [
    (b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-big: " + b"a" * 100_000 + b"\r\n\r\n", b"431"),
    (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", b"431"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400"),
    (b"GET\r\n\r\n", b"400"),
    (b"POST /v1/executions HTTP/1.1\r\ncontent-length: -1\r\n\r\n", b"400"),
    (SMUGGLED, b"400"),
]


async def test_broken_http_is_refused_and_the_connection_closed(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        for sent, status in BROKEN:
            reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
            writer.write(sent)
            answer = await asyncio.wait_for(reader.read(), 20)
            assert answer.split(b" ")[1] == status, sent[:60]
            assert b'"kind":"invalid_input"' in answer
            writer.close()
        async with client(process) as http:
            assert (await http.get("/readyz")).status_code == 200


async def test_a_chunked_body_over_its_limit_is_cut_off(tmp_path: Path) -> None:
    async with running(tmp_path) as process:
        reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
        writer.write(
            b"PUT /v1/executions/%7Bfp:1%7D:11111111-2222-4333-8444-555555555555/tags HTTP/1.1\r\n"
            b"host: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
        for _ in range(4):
            writer.write(chunk)
        answer = await asyncio.wait_for(reader.read(), 20)
        assert answer.startswith(b"HTTP/1.1 413 ")
        writer.close()


async def test_a_request_in_many_small_pieces_is_served(tmp_path: Path) -> None:
    body = b'{"lane_id":"default","execution_kind":"greet"}'
    request = HEAD.replace(b"1000", b"%d" % len(body)) + body
    async with running(tmp_path) as process:
        reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
        for at in range(len(request)):
            writer.write(request[at : at + 1])
            await writer.drain()
        assert (await asyncio.wait_for(reader.readline(), 20)).split(b" ")[1] == b"201"
        writer.close()


async def test_requests_sent_behind_each_other_are_answered_in_order(tmp_path: Path) -> None:
    lines = (b"/healthz", b"/nowhere", b"/readyz")
    async with running(tmp_path) as process:
        reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
        for path in lines:
            writer.write(b"GET %b HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" % path)
        seen: list[bytes] = []
        while len(seen) < len(lines):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            seen.append(head.split(b" ")[1])
            size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            await reader.readexactly(size)
        assert seen == [b"200", b"404", b"200"]
        writer.close()


async def test_a_client_that_asks_first_is_told_to_go_on(tmp_path: Path) -> None:
    body = b'{"lane_id":"default","execution_kind":"greet"}'
    head = HEAD.replace(b"1000\r\n", b"%d\r\nexpect: 100-continue\r\n" % len(body))
    async with running(tmp_path) as process:
        reader, writer = await asyncio.open_connection("127.0.0.1", process.port)
        writer.write(head)
        assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20) == (
            b"HTTP/1.1 100 Continue\r\n\r\n"
        )
        writer.write(body)
        assert (await asyncio.wait_for(reader.readline(), 20)).split(b" ")[1] == b"201"
        writer.close()
