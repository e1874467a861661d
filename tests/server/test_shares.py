"""Tokens share what all requests have together: one that takes all it can leaves some to others."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from flowfabric.engine.permits import Permits
from flowfabric.server.waits import ClaimWaits
from tests.server.conftest import Serve
from tests.server.driving import WORKER, Served
from tests.server.events import EventSource
from tests.server.tokens import bearer, token

GREEDY, MODEST = bearer("greedy"), bearer("modest")


@pytest.fixture
async def shared(serve: Serve) -> Served:
    """A server with pools of four, and two tokens."""
    served = await serve(
        tokens=(token("greedy", "admin"), token("modest", "admin")),
        max_concurrent_stream_ops=4,
        max_sse_streams=4,
    )
    services = served.application.services
    services.long_polls = Permits("long_polls", 4)
    services.claim_waits = ClaimWaits(4)
    served.headers = MODEST
    return served


Line = Callable[[str, int], tuple[str, Any]]


def tail(own: str, _: int) -> tuple[str, Any]:
    return f"GET /v1/executions/{own}/attempts/0/stream/tail?block_ms=20000", None


def end(own: str, _: int) -> tuple[str, Any]:
    return f"GET /v1/executions/{own}/state?wait_ms=20000", None


def events(_: str, __: int) -> tuple[str, Any]:
    return "GET /v1/events?wait_ms=20000&namespace=nobodys", None


def claim(_: str, number: int) -> tuple[str, Any]:
    waiting = {"lanes": ["idle"], "wait_ms": 20_000, "worker_instance_id": f"w-{number}"}
    return "POST /v1/worker/claim", {**WORKER, **waiting}


@asynccontextmanager
async def waiting(
    served: Served, line: Line, own: str, pool: Callable[[], int]
) -> AsyncIterator[None]:
    """Two requests of the greedy token that wait."""
    tasks = []
    for number in range(2):
        path, body = line(own, number)
        tasks.append(asyncio.create_task(served.call(path, body, headers=GREEDY)))
    try:
        async with asyncio.timeout(15):
            while pool() < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("line", [tail, end, events, claim])
async def test_one_token_cannot_take_all_waits(line: Line, shared: Served) -> None:
    own = (await shared.held())["execution_id"]
    services = shared.application.services
    pools: dict[Line, Callable[[], int]] = {
        tail: lambda: services.engine.streams.permits.taken,
        claim: lambda: len(services.claim_waits),
    }
    async with waiting(shared, line, own, pools.get(line, lambda: services.long_polls.taken)):
        path, body = line(own, 2)
        refused = await shared.call(path, body, headers=GREEDY)
        assert refused.status_code == 429, refused.text
        assert "2 of them yours" in refused.json()["error"]
        assert int(refused.headers["retry-after"]) >= 1
        # The other one gets in; it does not wait for long.
        short, body = line(own, 3)
        short = short.replace("=20000", "=1")
        answer = await shared.call(short, body and {**body, "wait_ms": 1}, headers=MODEST)
        assert answer.status_code in (200, 204), answer.text


async def test_one_token_cannot_take_all_streams(shared: Served) -> None:
    own = (await shared.held())["execution_id"]
    path = f"/v1/executions/{own}/attempts/0/stream/sse"
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(EventSource(shared.application, path, GREEDY))
        assert (await shared.call(f"GET {path}", headers=GREEDY)).status_code == 429
        feed = {**GREEDY, "accept": "text/event-stream"}
        assert (await shared.call("GET /v1/events", headers=feed)).status_code == 429
        async with EventSource(shared.application, path, MODEST) as other:
            assert other.status == 200


async def test_the_only_token_has_no_one_to_share_with(serve: Serve) -> None:
    served = await serve(tokens=(token("greedy", "admin"),), max_sse_streams=2)
    served.headers = GREEDY
    own = (await served.held())["execution_id"]
    path = f"/v1/executions/{own}/attempts/0/stream/sse"
    async with (
        EventSource(served.application, path, GREEDY),
        EventSource(served.application, path, GREEDY) as second,
    ):
        assert second.status == 200
