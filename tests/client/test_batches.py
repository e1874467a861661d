"""Batches that are larger than a body may be: cut, sent one after the other, answered as one."""

from typing import Any

import msgspec
import pytest

from flowfabric.client.connection import persistent
from flowfabric.client.http import Message, Response
from flowfabric.client.operations import http_transport
from flowfabric.client.rest import Rest
from flowfabric.core.tokens import Secret
from flowfabric.errors import FlowFabricError, StaleLease, TimedOut, Unavailable, Unreachable
from flowfabric.operations.declaration import AsyncCalls
from flowfabric.operations.workers import (
    ClaimTerms,
    Complete,
    Finish,
    Finished,
    Renewal,
    Renewed,
    Workers,
)

HELD: dict[str, Any] = {
    "execution_id": "{fp:1}:x",
    "lease_id": "l",
    "lease_epoch": 1,
    "attempt_id": "a",
}
NEXT = ClaimTerms(worker_id="w", worker_instance_id="w-1", lanes=("default",))
STALE = {"error": "stale_lease: gone", "kind": "stale_lease", "retryable": False}


class Calls(AsyncCalls, Workers):
    pass


class Server:
    """Answers every item, and notes what it was sent."""

    def __init__(self, status: int = 200) -> None:
        self.bodies: list[dict[str, list[object]]] = []
        self._status = status

    def calls(self) -> Calls:
        return Calls(persistent(http_transport(Rest("http://localhost", Secret(""), self))))

    async def close(self) -> None:
        pass

    async def send(self, message: Message, timeout_s: float) -> Response:
        return _response(*self._answer(message))

    def _answer(self, message: Message) -> tuple[int, object]:
        assert message.body is not None
        body = msgspec.json.decode(message.body)
        self.bodies.append(body)
        if self._status != 200:
            told = {503: "unavailable", 504: "timeout"}[self._status]
            refusal = {"error": told, "kind": told, "retryable": False}
            return self._status, refusal
        now, ok = len(self.bodies), {"state": "completed"}
        items: list[object] = [{"ok": ok} for _ in body["items"]]
        if message.target.endswith("/renew"):
            items = [{"ok": {"lease_expires_at": now}} for _ in body["items"]]
            return 200, {"items": items, "now": now, "config_revision": now}
        items[-1] = {"error": STALE}
        return 200, {"items": items, "claimed": [], "more": False, "now": now}


def _response(status: int, body: object) -> Response:
    return Response(status, {}, msgspec.json.encode(body))


def finish(size: int = 0) -> Finish:
    return Finish(**HELD, op="o", outcome=Complete(b"x" * size))


def kinds(items: list[Finished | FlowFabricError]) -> list[type]:
    return [type(one) for one in items]


async def test_more_is_claimed_with_the_last_piece_only() -> None:
    server = Server()
    reply = await server.calls().finish([finish() for _ in range(450)], NEXT)
    assert [len(body["items"]) for body in server.bodies] == [200, 200, 50]
    assert ["next" in body for body in server.bodies] == [False, False, True]
    assert kinds(reply.items) == [
        *[*[Finished] * 199, StaleLease] * 2,
        *[Finished] * 49,
        StaleLease,
    ]
    assert (reply.now, reply.more) == (3, False)


async def test_a_piece_is_no_larger_than_a_body_may_be() -> None:
    server = Server()
    await server.calls().finish([finish(1024 * 1024) for _ in range(8)])
    assert [len(body["items"]) for body in server.bodies] == [5, 3]


async def test_a_batch_that_fits_is_one_request() -> None:
    server = Server()
    reply = await server.calls().renew("w-1", 30_000, [Renewal(**HELD)] * 200)
    assert len(server.bodies) == 1
    assert (reply.items, reply.config_revision) == ([Renewed(1)] * 200, 1)


@pytest.mark.parametrize(("status", "cause"), [(503, Unavailable), (504, TimedOut)])
async def test_for_a_worker_a_server_that_stops_is_one_to_ask_again(
    status: int, cause: type[FlowFabricError]
) -> None:
    with pytest.raises(Unreachable) as caught:
        await Server(status).calls().finish([finish()])
    assert caught.value.retryable
    assert isinstance(caught.value.__cause__, cause)
