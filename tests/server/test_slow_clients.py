"""Connections that are waited for: how long, and what ends the wait. The time is the test's."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.server.connection import (
    INPUT_S,
    MAX_DISCARDED_BYTES,
    MAX_REFUSED_BYTES,
    MIN_READ_BYTES,
    STALLED_S,
    Connection,
)
from flowfabric.server.decoding import Receive
from flowfabric.server.http import Scope, Send
from flowfabric.server.listener import IDLE_S, Listener

ASK = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n"
SOON = 2.0


class Transport(asyncio.Transport):
    """Notes what is done to it; `unsent` is what the client has not read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.unsent = 0
        self.is_paused = self.is_closed = self.is_aborted = self.has_eof = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.is_paused = True

    def resume_reading(self) -> None:
        self.is_paused = False

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.has_eof = True

    def is_closing(self) -> bool:
        return self.is_closed or self.is_aborted

    def close(self) -> None:
        self.is_closed = True

    def abort(self) -> None:
        self.is_aborted = True


class Peer:
    """One end of a connection: what the other end does to it, and the clock of its sweeps."""

    def __init__(self, application: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self.transport = Transport()
        self.connection = Connection(Listener(application))
        self.connection.connection_made(self.transport)
        self._now = asyncio.get_running_loop().time()

    async def send(self, data: bytes) -> None:
        self.connection.data_received(data)
        # Whatever the application does about it, it does without waiting.
        for _ in range(20):
            await asyncio.sleep(0)

    def wait(self, seconds: float) -> None:
        end = self._now + seconds
        while self._now < end:
            self._now = min(end, self._now + 1.0)
            self.connection.sweep(self._now)

    @property
    def is_open(self) -> bool:
        return not self.transport.is_closing()


async def respond(scope: Scope, receive: Receive, send: Send) -> None:
    """Does not read the body."""
    headers = ((b"content-length", b"2"), (b"connection", b"close"))[: 1 + (scope["path"] != "/")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"ok"})


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.Event().wait()


@pytest.fixture
async def peer() -> Peer:
    return Peer(respond)


@pytest.mark.parametrize("said", [b"", b"\r\n", b"GE", ASK[:-2]])
async def test_a_head_must_arrive_in_time(said: bytes, peer: Peer) -> None:
    await peer.send(said)
    peer.wait(INPUT_S - SOON)
    assert peer.is_open
    peer.wait(2 * SOON)
    assert not peer.is_open


async def test_an_idle_connection_is_kept_for_longer(peer: Peer) -> None:
    await peer.send(ASK)
    assert peer.transport.written.endswith(b"ok")
    peer.wait(IDLE_S - SOON)
    assert peer.is_open
    peer.wait(2 * SOON)
    assert not peer.is_open


async def test_a_later_head_must_arrive_in_time_too(peer: Peer) -> None:
    await peer.send(ASK)
    await peer.send(ASK[:-2])
    peer.wait(INPUT_S + SOON)
    assert not peer.is_open


async def test_a_request_in_progress_is_not_the_clients_wait() -> None:
    peer = Peer(never)
    await peer.send(ASK + ASK[:-2])
    peer.wait(10 * IDLE_S)
    assert peer.is_open


async def test_the_rest_of_an_unread_body_must_arrive_in_time(peer: Peer) -> None:
    await peer.send(POST % 1_000 + b"x")
    assert peer.transport.written.endswith(b"ok")
    peer.wait(INPUT_S - SOON)
    assert peer.is_open
    peer.wait(2 * SOON)
    assert not peer.is_open


async def test_only_so_much_of_an_unread_body_is_discarded(peer: Peer) -> None:
    await peer.send(POST % (MAX_DISCARDED_BYTES + 10) + b"x")
    await peer.send(b"x" * (MAX_DISCARDED_BYTES - 1))
    assert peer.is_open
    # What follows in the same block is not served on a connection that closes.
    await peer.send(b"x" * 10 + ASK)
    assert not peer.is_open
    assert peer.transport.written.count(b"HTTP/1.1 200") == 1


@pytest.mark.parametrize(
    ("said", "limit"),
    [
        (POST.replace(b" / ", b" /last ") % 10_000_000, MAX_DISCARDED_BYTES),
        (b"\x00", MAX_REFUSED_BYTES),
    ],
    ids=["response", "refusal"],
)
async def test_after_the_last_response_input_is_discarded_for_a_while(
    said: bytes, limit: int, peer: Peer
) -> None:
    await peer.send(said)
    assert b"connection: close" in peer.transport.written
    assert peer.transport.has_eof
    await peer.send(b"x" * limit)
    assert peer.is_open
    await peer.send(b"x")
    assert not peer.is_open


async def test_after_the_last_response_the_client_must_close_in_time(peer: Peer) -> None:
    await peer.send(b"\x00")
    peer.wait(INPUT_S - SOON)
    assert peer.is_open
    peer.wait(2 * SOON)
    assert not peer.is_open


async def test_a_client_that_asked_for_the_last_response_is_not_waited_for(peer: Peer) -> None:
    await peer.send(ASK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    assert not peer.is_open


async def test_input_behind_the_last_request_is_not_read_without_end() -> None:
    peer = Peer(never)
    await peer.send(ASK.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n"))
    await peer.send(b"x" * MAX_DISCARDED_BYTES)
    assert not peer.transport.is_paused
    await peer.send(b"x")
    assert peer.transport.is_paused


# ---- clients that do not read


async def test_a_client_that_reads_too_little_is_cut(peer: Peer) -> None:
    await peer.send(ASK)
    peer.transport.unsent = 1
    peer.wait(STALLED_S - SOON)
    assert peer.is_open
    peer.wait(2 * SOON)
    assert peer.transport.is_aborted


async def test_a_client_that_reads_slowly_but_enough_is_kept() -> None:
    peer = Peer(never)
    await peer.send(ASK)
    peer.connection.write(b"x" * (100 * MIN_READ_BYTES))
    for left in range(100, 0, -1):
        peer.transport.unsent = left * MIN_READ_BYTES
        peer.wait(STALLED_S - SOON)
    assert peer.is_open
    peer.transport.unsent -= MIN_READ_BYTES - 1
    peer.wait(STALLED_S + SOON)
    assert peer.transport.is_aborted


async def test_a_client_that_does_not_read_the_last_response_is_cut(peer: Peer) -> None:
    await peer.send(ASK.replace(b" / ", b" /last "))
    assert peer.transport.is_closed
    peer.transport.unsent = 1
    peer.wait(STALLED_S + SOON)
    assert peer.transport.is_aborted


async def test_time_spent_reading_a_response_is_not_idle(peer: Peer) -> None:
    await peer.send(ASK)
    peer.connection.write(b"x" * (100 * MIN_READ_BYTES))
    for left in range(10, 0, -1):
        peer.transport.unsent = left * MIN_READ_BYTES
        peer.wait(STALLED_S - SOON)
    peer.transport.unsent = 0
    peer.wait(SOON)
    assert peer.is_open


# ---- the application


async def test_malformed_input_behind_the_beginning_of_a_response_cuts_it() -> None:
    """A refusal would be taken for a part of the response, or for the next one."""

    async def begin(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": ()})
        await asyncio.Event().wait()

    for application in (begin, respond):
        peer = Peer(application)
        await peer.send(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        await peer.send(b"no size\r\n")
        assert peer.transport.is_aborted
        assert peer.transport.written.count(b"HTTP/1.1 ") == 1


async def test_chunks_of_a_byte_arrive_in_large_pieces() -> None:
    """A step for each would block the event loop: 256 KB hold more than forty thousand."""
    read: list[Any] = []

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        while not read or read[-1]["more_body"]:
            read.append(await receive())

    peer = Peer(note)
    await peer.send(b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
    await peer.send(b"1\r\nx\r\n" * 40_000 + b"0\r\n\r\n")
    assert [len(one["body"]) for one in read] == [1, 40_000]


async def test_an_application_reads_a_large_body_as_fast_as_it_can() -> None:
    may_read = asyncio.Event()
    read: list[Any] = []

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await may_read.wait()
        read.append(await receive())

    peer = Peer(slow)
    await peer.send(POST % 1_000_000 + b"x" * 500_000)
    assert peer.transport.is_paused
    may_read.set()
    await peer.send(b"")
    assert len(read[0]["body"]) == 500_000
    assert read[0]["more_body"]
    assert not peer.transport.is_paused
