"""A connection to a server that says nothing for a while, or never again."""

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import libvalkey
import pytest

from flowfabric.backend.valkey.connection import Connection, Login, connect
from flowfabric.errors import StoreTimeout
from tests.valkey_server import ValkeyServer, shared_server


def echo(word: str) -> bytes:
    return libvalkey.pack_command(("ECHO", word))


@pytest.fixture
def server() -> ValkeyServer:
    return shared_server()


@pytest.fixture
async def connection(
    server: ValkeyServer, request: pytest.FixtureRequest
) -> AsyncIterator[Connection]:
    """For as many seconds as the test says it waits for an answer."""
    made = await connect("127.0.0.1", server.port, Login(request_s=getattr(request, "param", 5.0)))
    yield made
    server.thaw()
    made.abort()
    await made.closed


@pytest.mark.parametrize("connection", [600.0], indirect=True)
async def test_who_does_not_wait_for_a_silent_server_has_its_answer_late_and_nobody_else(
    server: ValkeyServer, connection: Connection
) -> None:
    late: list[Any] = []
    server.freeze()
    impatient, patient = connection.send(echo("a"), late.append), connection.send(echo("b"))
    with pytest.raises(StoreTimeout, match=f"{server.port}: no answer for 1 s"):
        await impatient
    # Once it is known to be silent, it is not even asked.
    with pytest.raises(StoreTimeout):
        await connection.send(echo("c"), late.append)
    server.thaw()
    assert await patient == b"b"
    assert await connection.send(echo("d"), late.append) == b"d"
    assert late == [b"a"]


@pytest.mark.parametrize("connection", [1.0], indirect=True)
async def test_a_server_that_never_answers_is_given_up(
    server: ValkeyServer, connection: Connection
) -> None:
    server.freeze()
    for asked in (connection.send(echo("a")), connection.send(echo("b"))):
        with pytest.raises(StoreTimeout, match=f"{server.port}: no answer within 1 s"):
            await asked
    async with asyncio.timeout(20):
        await connection.closed


async def test_a_host_that_is_gone_is_noticed_though_it_is_asked_nothing(
    connection: Connection,
) -> None:
    assert connection._transport is not None
    plug = connection._transport.get_extra_info("socket")
    assert plug.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
