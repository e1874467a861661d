"""Connections to one server: as many as are waited on together, and used again."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from flowfabric.client.http import HttpClient, Message, RequestFailed
from tests.client.scripted import CUT, Scripted, answer, saying
from tests.tls_doors import make_certificates, tls_door

CROWD = 50
ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"
READ = Message("GET", "/")
WAIT_S = 30.0


class Slow:
    """A server that answers once a number of requests wait."""

    def __init__(self) -> None:
        self.connections: list[asyncio.Task[Any]] = []
        self.everybody = asyncio.Barrier(1)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.connections.append(task)
        while await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            await self.everybody.wait()
            writer.write(ANSWER)
            await writer.drain()
        writer.close()
        await writer.wait_closed()


async def test_a_crowd_waits_together_and_leaves_connections_to_the_next() -> None:
    slow = Slow()
    server = await asyncio.start_server(slow.serve, "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    client = HttpClient(f"http://127.0.0.1:{port}", {})
    async with server:
        for _ in range(3):
            await client.send(READ, WAIT_S)
        assert len(slow.connections) == 1
        slow.everybody = asyncio.Barrier(CROWD)
        answers = await asyncio.gather(*(client.send(READ, WAIT_S) for _ in range(CROWD)))
        assert {one.status for one in answers} == {204}
        assert len(slow.connections) == CROWD
        slow.everybody = asyncio.Barrier(1)
        for _ in range(3):
            await client.send(READ, WAIT_S)
        assert len(slow.connections) == CROWD
        await client.close()
        # The client has closed all of them; what is left of them must not outlive the loop.
        await asyncio.gather(*slow.connections)


@asynccontextmanager
async def asking(*script: bytes) -> AsyncIterator[tuple[HttpClient, Scripted]]:
    async with saying(*script) as scripted:
        client = HttpClient(f"{scripted.url}/below", {"authorization": "Bearer s3cret"})
        try:
            yield client, scripted
        finally:
            await client.close()


async def test_a_request_is_sent_as_http() -> None:
    async with asking(answer(200, {})) as (client, scripted):
        await client.send(Message("GET", "/a?b=1"), WAIT_S)
        await client.send(Message("POST", "/c", {"traceparent": "00-1"}), WAIT_S)
        await client.send(Message("PUT", "/d", {}, b"{}"), WAIT_S)
        host = scripted.url.removeprefix("http://").encode()
    common = b"host: " + host + b"\r\nuser-agent: flowfabric\r\nauthorization: Bearer s3cret\r\n"
    assert scripted.requests == [
        b"GET /below/a?b=1 HTTP/1.1\r\n" + common + b"\r\n",
        b"POST /below/c HTTP/1.1\r\n" + common + b"traceparent: 00-1\r\ncontent-length: 0\r\n\r\n",
        b"PUT /below/d HTTP/1.1\r\n"
        + common
        + b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}",
    ]


@pytest.mark.parametrize(
    "said",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\ndo\r\n2\r\nne\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ndone",
        b"HTTP/1.0 200 OK\r\nContent-Length: 4\r\n\r\ndone",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\ndone",
    ],
    ids=["length", "chunked", "informational", "1.0", "close"],
)
async def test_a_response_may_be_framed_in_several_ways(said: bytes) -> None:
    async with asking(said) as (client, scripted):
        for _ in range(2):
            response = await client.send(READ, WAIT_S)
            assert (response.status, response.content) == (200, b"done")
        assert len(scripted.requests) == 2


async def test_a_response_may_end_with_its_connection() -> None:
    async with asking(b"HTTP/1.1 200 OK\r\n\r\ndone", CUT) as (client, scripted):
        waiting = asyncio.ensure_future(client.send(READ, WAIT_S))
        await scripted.answered.wait()
        scripted.cut()
        response = await waiting
        assert (response.status, response.content) == (200, b"done")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (CUT, "the server closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\ndone", "closed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "malformed"),
        (b"HTTP/1.1 101 No\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "malformed"),
        (b"SSH-2.0-x\r\n", "malformed"),
    ],
    ids=["cut", "cut body", "length", "upgrade", "other protocol"],
)
async def test_a_response_that_does_not_come_whole_is_a_failure(said: bytes, reason: str) -> None:
    async with asking(said) as (client, scripted):
        waiting = asyncio.ensure_future(client.send(READ, WAIT_S))
        if said:
            await scripted.answered.wait()
        scripted.cut()
        with pytest.raises(RequestFailed, match=reason) as caught:
            await waiting
        assert caught.value.is_sent


@pytest.mark.parametrize(
    "said",
    [
        answer(200, {}) + answer(500, {}),
        answer(200, {}) + b"HTTP/1.1 500",
    ],
    ids=["whole", "begun"],
)
async def test_a_second_response_answers_nobody(said: bytes) -> None:
    async with asking(said, answer(204, b"")) as (client, _):
        assert (await client.send(READ, WAIT_S)).status == 200
        assert (await client.send(READ, WAIT_S)).status == 204


async def test_a_silent_server_is_given_up() -> None:
    async with asking(b"HTTP/1.1") as (client, _):
        with pytest.raises(RequestFailed, match="no answer within") as caught:
            await client.send(READ, 0.05)
        assert caught.value.is_sent


async def test_a_cancelled_request_gives_its_connection_up() -> None:
    async with asking(b"HTTP/1.1", answer(204, b"")) as (client, scripted):
        waiting = asyncio.ensure_future(client.send(READ, WAIT_S))
        await scripted.answered.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await client.send(READ, WAIT_S)).status == 204


async def test_who_is_not_there_was_sent_nothing() -> None:
    async with saying(CUT) as nobody:
        url = nobody.url
    with pytest.raises(RequestFailed, match=r"cannot connect to 127\.0\.0\.1") as caught:
        await HttpClient(url, {}).send(READ, WAIT_S)
    assert not caught.value.is_sent


@asynccontextmanager
async def asking_with_tls(directory: Path) -> AsyncIterator[tuple[str, Scripted]]:
    make_certificates(directory)
    async with saying(answer(204, b"")) as scripted:
        port = int(scripted.url.rpartition(":")[2])
        async with tls_door(port, directory) as door:
            yield f"https://127.0.0.1:{door}", scripted


async def test_a_server_with_a_trusted_certificate_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    async with asking_with_tls(tmp_path) as (url, _):
        client = HttpClient(url, {})
        for _ in range(2):
            assert (await client.send(READ, WAIT_S)).status == 204
        await client.close()


async def test_a_server_without_one_is_sent_nothing(tmp_path: Path) -> None:
    async with asking_with_tls(tmp_path) as (url, scripted):
        with pytest.raises(RequestFailed, match="cannot connect") as caught:
            await HttpClient(url, {}).send(READ, WAIT_S)
        assert isinstance(caught.value.__cause__, ssl.SSLError)
        assert not caught.value.is_sent
        assert scripted.requests == []
