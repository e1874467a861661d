"""Requests that are not quite HTTP, or never end: each is refused in its turn, at little cost."""

import asyncio
import logging
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import httpx
import pytest

from flowfabric.config import Settings
from flowfabric.server import booted
from flowfabric.server.boot import dev
from flowfabric.server.connection import MAX_PIPELINED
from flowfabric.server.parser import MAX_HEAD_BYTES, MAX_HEADERS
from tests.server.listening import Listening, converse, listening, statuses
from tests.serving import TOKEN, tokened

GET = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n"
ASK = GET + b"\r\n"
LAST = GET + b"connection: close\r\n\r\n"
CHUNKED = b"POST /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
SUBMIT = b"POST /v1/executions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
BODY = b'{"lane_id":"default","execution_kind":"greet"}'


@asynccontextmanager
async def serving(settings: Settings | None = None) -> AsyncIterator[Listening]:
    async with listening(partial(booted, settings or dev())) as server:
        yield server


@pytest.fixture
async def server() -> AsyncIterator[Listening]:
    async with serving() as server:
        yield server


async def is_ready(server: Listening) -> bool:
    return statuses(await converse(server, LAST.replace(b"/healthz", b"/readyz"))) == [200]


# ---- what never ends


async def bytes_until_closed(server: Listening, head: bytes, unit: bytes) -> int:
    """How much of an endless element is sent before the server closes the connection."""
    _, writer = await server.connect()
    block = unit * (16_384 // len(unit))
    sent = 0
    try:
        writer.write(head)
        while sent < 4_000_000:
            writer.write(block)
            await writer.drain()
            sent += len(block)
            # Not faster than the server reads: what the kernel holds was not taken by the server.
            await asyncio.sleep(0.002)
    except ConnectionError:
        pass
    writer.transport.abort()
    return sent


@pytest.mark.parametrize(
    ("head", "unit"),
    [
        pytest.param(GET + b"x-a: ", b"a", id="header value"),
        pytest.param(GET + b"x", b"a", id="header name"),
        pytest.param(GET, b"a: b\r\n", id="headers"),
        pytest.param(CHUNKED + b"0\r\nx-a: ", b"a", id="trailer value"),
        pytest.param(CHUNKED + b"0\r\nx", b"a", id="trailer name"),
        pytest.param(CHUNKED + b"0\r\n", b"a: b\r\n", id="trailers"),
        pytest.param(CHUNKED + b"5;", b"a", id="chunk extension"),
        pytest.param(b"\r\n", b"\r\n", id="empty lines"),
        pytest.param(ASK, b"\r\n", id="empty lines behind a request"),
        pytest.param(b"GET /", b"a", id="path"),
        pytest.param(b"GET /?", b"a", id="query"),
    ],
)
async def test_an_endless_element_is_cut_below_a_megabyte(
    head: bytes, unit: bytes, server: Listening
) -> None:
    assert await bytes_until_closed(server, head, unit) < 1_000_000
    assert await is_ready(server)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (GET + b"x-a: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n", 431),
        (GET + b"".join(b"h%d: 1\r\n" % n for n in range(MAX_HEADERS)) + b"\r\n", 431),
        (b"GET /?" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nhost: a\r\n\r\n", 431),
    ],
    ids=["bytes", "headers", "target"],
)
async def test_a_head_over_its_limit_is_refused(
    sent: bytes, status: int, server: Listening
) -> None:
    assert statuses(await converse(server, sent)) == [status]


async def test_a_head_at_its_limits_is_served(server: Listening) -> None:
    # Host and connection are two of the headers.
    fillers = b"".join(b"h%d: 1\r\n" % n for n in range(MAX_HEADERS - 2))
    large = b"x-a: " + b"a" * (MAX_HEAD_BYTES - 200) + b"\r\n"
    for lines in (fillers, large):
        sent = GET + lines + b"connection: close\r\n\r\n"
        assert statuses(await converse(server, sent)) == [200]


async def test_trailers_count_towards_the_limit_of_the_head(server: Listening) -> None:
    half = b"x-half: " + b"a" * (MAX_HEAD_BYTES // 2) + b"\r\n"
    head = CHUNKED[:-2] + half + b"\r\n"
    assert statuses(await converse(server, head + b"0\r\n" + half + b"\r\n" + LAST))[0] == 431
    # The route does not take a body, but the request is complete and the next one is served.
    small = await converse(server, head + b"0\r\nx-t: 1\r\n\r\n" + LAST)
    assert statuses(small) == [405, 200]


# ---- framing


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"GET /healthz HTTP/1.1\r\n\r\n", [400]),
        (b"GET /healthz HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", [400]),
        (b"GET /healthz HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n", [400]),
        (b"GET /healthz HTTP/1.0\r\nhost: 127.0.0.1\r\n\r\n", [200]),
        (b"GET /healthz\r\n\r\n", [400]),
        (b"GET /healthz HTTP/0.9\r\n\r\n", [400]),
        (b"GET /healthz HTTP/2.0\r\nhost: 127.0.0.1\r\n\r\n", [400]),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
        (b"CONNECT example:443 HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n", [400]),
        (CHUNKED.replace(b"chunked", b"gzip, chunked") + b"0\r\n\r\n", [501]),
        (CHUNKED.replace(b"chunked", b"gzip") + b"0\r\n\r\n", [501]),
        (CHUNKED.replace(b"chunked", b"identity\r\ntransfer-encoding: chunked"), [501]),
        (CHUNKED.replace(b"chunked", b"\tChunked ") + b"0\r\n\r\n" + LAST, [405, 200]),
        (CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0") + b"0\r\n\r\n", [400]),
        (CHUNKED[:-2] + b"content-length: 5\r\n\r\n0\r\n\r\n", [400]),
        (GET + b" folded\r\n\r\n", [400]),
        (GET + b"x-a : b\r\n\r\n", [400]),
        (GET.replace(b"\r\n", b"\n") + b"\n", [400]),
        (GET + b"content-length: 1\r\ncontent-length: 1\r\n\r\na", [400]),
    ],
)
async def test_each_framing_has_its_answer(
    sent: bytes, expected: list[int], server: Listening
) -> None:
    assert statuses(await converse(server, sent)) == expected


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (ASK + b"BAD\r\n\r\n", [200, 400]),
        (ASK * 3 + b"\x00\x01\r\n\r\n" + ASK, [200] * 3 + [400]),
        (ASK + CHUNKED + b"no size\r\n", [200, 400]),
        (CHUNKED + b"1\r\nab", [400]),
        (ASK + b"GET /healthz HTTP/1.1\r\n\r\n" + ASK, [200, 400]),
        (GET + b"connection: close\r\n\r\n" + ASK, [200]),
        (GET + b"connection: close\r\n\r\n\x00garbage", [200]),
        (GET + b"connection: upgrade\r\nupgrade: h2c\r\n\r\n" + ASK, [200]),
        (ASK * 20 + LAST, [200] * 21),
    ],
)
async def test_a_refusal_waits_its_turn_and_ends_the_connection(
    sent: bytes, expected: list[int], server: Listening
) -> None:
    assert statuses(await converse(server, sent)) == expected


@pytest.mark.parametrize("length", [b"content-length: 46", b"transfer-encoding: chunked"])
async def test_a_request_for_an_upgrade_is_not_served_without_its_body(
    length: bytes, server: Listening
) -> None:
    """The parser does not read it, and a body that may be left out would count as absent."""
    upgrade = b"connection: upgrade\r\nupgrade: h2c\r\n" + length + b"\r\n\r\n"
    assert statuses(await converse(server, SUBMIT + upgrade + BODY)) == [501]


async def test_requests_too_far_ahead_are_not_served(server: Listening) -> None:
    said = await converse(server, ASK * 5_000)
    assert statuses(said) == [200] * (MAX_PIPELINED + 1)
    assert said.count(b"connection: close") == 1


# ---- trailers


async def test_a_trailer_is_no_header() -> None:
    line = b"authorization: Bearer " + TOKEN.encode() + b"\r\n"
    async with serving(tokened()) as server:
        for head, trailer, status in ((line, b"", 201), (b"", line, 401), (b"", b"", 401)):
            sent = (
                b"%b%btransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n%b\r\n"
                b"GET /v1/partitions HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
            ) % (SUBMIT, head, len(BODY), BODY, trailer)
            assert statuses(await converse(server, sent)) == [status, 401]


# ---- connections that are lost


async def test_a_stream_reset_with_a_request_behind_it_is_no_error(
    server: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    port = server.address[1]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        answer = await http.post("/v1/executions", content=BODY, headers=JSON)
        own = answer.json()["execution_id"]
        path = f"/v1/executions/{own}/attempts/0/stream/sse"
        follow = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
        for turn in range(60):
            reader, writer = await server.connect()
            writer.write(follow + ASK)
            if turn % 2:
                await reader.readuntil(b"\r\n\r\n")
            own_socket = writer.get_extra_info("socket")
            own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        figures = ""
        async with asyncio.timeout(20):
            while "ff_sse_streams_open 0.0" not in figures:
                figures = (await http.get("/metrics")).text
    assert [one.message for one in caplog.records if one.levelno >= logging.ERROR] == []


JSON = {"content-type": "application/json"}
