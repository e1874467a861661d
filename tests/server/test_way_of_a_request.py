"""The way of a request, on routes made for it: time, disconnects, and the order of refusals."""

import asyncio
from typing import Any

import pytest

from flowfabric.operations.declaration import ADMIN, ANY
from flowfabric.server import Http
from flowfabric.server.call import Call
from flowfabric.server.decoding import ClientDisconnected
from flowfabric.server.replies import Reply, ok
from flowfabric.server.route import Routes
from tests.server.conftest import Serve
from tests.server.driving import Served
from tests.server.tokens import token

routes = Routes()


@routes.add("GET /slow", ANY, {200: str}, timeout_s=0.05)
async def slow(call: Call[None, None]) -> Reply:
    """Takes longer than it may."""
    await asyncio.Event().wait()
    return ok("never")


@routes.add("GET /own-timeout", ANY, {200: str})
async def own_timeout(call: Call[None, None]) -> Reply:
    """Fails with a timeout that is not the request's."""
    raise TimeoutError("something inside")


@routes.add("GET /gone", ANY, {200: str})
async def gone(call: Call[None, None]) -> Reply:
    """Finds that nobody is left."""
    raise ClientDisconnected


@routes.add("GET /waiting", ANY, {200: str}, timeout_s=None)
async def waiting(call: Call[None, None]) -> Reply:
    """Waits until it is over."""
    async with call.cancellable_wait() as wait:
        await wait.run(asyncio.Event().wait())
    return ok("never")


@routes.add("PUT /guarded/{execution_id}", ADMIN, {200: str})
async def guarded(call: Call[None, None]) -> Reply:
    """For the order of refusals."""
    return ok("done")


def request(path: str, method: str = "GET", **headers: str) -> dict[str, Any]:
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "headers": [(b"host", b"localhost"), *named],
        "server": ("127.0.0.1", 9090),
    }


async def answer(application: Http, scope: dict[str, Any], *received: dict[str, Any]) -> list[Any]:
    """What the application sends; when nothing more is received the client has gone."""
    sent: list[Any] = []
    incoming = list(received)

    async def receive() -> dict[str, Any]:
        return incoming.pop(0) if incoming else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async with asyncio.timeout(15):
        await application(scope, receive, send)
    return sent


@pytest.fixture
async def application(served: Served) -> Http:
    return Http(served.application.services, routes)


async def test_a_request_that_takes_too_long_is_answered_by_504(application: Http) -> None:
    start, body = await answer(application, request("/slow"))
    assert start["status"] == 504
    assert b'"kind":"timeout","retryable":false' in body["body"]


async def test_a_timeout_inside_is_a_bug_and_not_the_requests_own(application: Http) -> None:
    start, _ = await answer(application, request("/own-timeout"))
    assert start["status"] == 500


async def test_who_has_gone_is_sent_nothing(application: Http) -> None:
    assert await answer(application, request("/gone")) == []
    assert await answer(application, request("/waiting")) == []


async def test_a_body_that_breaks_off_is_sent_nothing(application: Http) -> None:
    half = {"type": "http.request", "body": b"{", "more_body": True}
    scope = request("/guarded/x", "PUT")
    assert await answer(application, scope, half) == []


async def test_refusals_come_in_their_order(serve: Serve) -> None:
    served = await serve(tokens=(token("boss", "admin"), token("reader", "read")))
    application = Http(served.application.services, routes)
    large = {"type": "http.request", "body": b"x" * 65_537, "more_body": False}
    nothing = {"type": "http.request", "body": b"", "more_body": False}
    boss, reader = "Bearer boss", "Bearer reader"
    tries = [
        (request("/guarded/x", "PUT"), large, 401),
        (request("/guarded/x", "PUT", authorization=reader), large, 403),
        (request("/guarded/x", "PUT", authorization=boss), large, 413),
        (request("/guarded/x", "PUT", authorization=boss), nothing, 400),
        (request("/guarded/x", "POST", authorization=boss), nothing, 405),
        (request("/elsewhere", "PUT", authorization=boss), nothing, 404),
    ]
    for scope, sent, status in tries:
        start, _ = await answer(application, scope, sent)
        assert start["status"] == status


async def test_a_websocket_is_turned_away(application: Http) -> None:
    sent = await answer(application, {"type": "websocket"})
    assert sent == [{"type": "websocket.close", "code": 1000}]


def test_a_route_is_declared_once(served: Served) -> None:
    with pytest.raises(ValueError, match="declared twice"):
        Http(served.application.services, [*routes, *routes])
