"""How many requests a worker over HTTP makes for what its attempts do at the same time."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric import Context, FlowFabric
from flowfabric.client.http import Response
from flowfabric.client.rest import Request, Rest
from tests.sdk.backends import EVERY

AT_ONCE = 16
STEPS = 10
_ID = re.compile(r"%7B.*?(?=/|$)|\{.*?(?=/|$)")


@pytest.fixture
async def fabric(tmp_path: Path) -> AsyncIterator[FlowFabric]:
    async with EVERY["http"](tmp_path) as opened:
        yield opened


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Requests by their path, ids left out."""
    found: Counter[str] = Counter()
    fetch = Rest.fetch

    async def counted(self: Rest, request: Request) -> Response:
        found[_ID.sub("ID", request.path)] += 1
        return await fetch(self, request)

    monkeypatch.setattr(Rest, "fetch", counted)
    return found


async def test_steps_and_frames_of_attempts_at_work_share_requests(
    fabric: FlowFabric, asked: Counter[str]
) -> None:
    async def add(n: int) -> int:
        return n + 1

    @fabric.task()
    async def ten(ctx: Context, n: int) -> int:
        for place in range(STEPS):
            n = await ctx.step(f"add{place}", add, n)
        await ctx.stream("done")
        return n

    async with fabric.worker(concurrency=AT_ONCE):
        found = await asyncio.gather(*(ten.call(0) for _ in range(AT_ONCE)))
    assert found == [STEPS] * AT_ONCE
    # One by one there would be sixteen times as many.
    assert asked["/v1/worker/journal"] <= AT_ONCE * STEPS / 4
    assert asked["/v1/worker/frames"] <= AT_ONCE / 2
    assert asked["/v1/worker/finish"] <= AT_ONCE / 2


async def test_children_are_submitted_in_one_request(
    fabric: FlowFabric, asked: Counter[str]
) -> None:
    @fabric.task()
    async def child(n: int) -> int:
        return n

    @fabric.task()
    async def parent(ctx: Context) -> int:
        return sum(await ctx.gather(*(child.bind(n) for n in range(20))))

    async with fabric.worker():
        assert await parent.call() == sum(range(20))
    assert asked["/v1/executions:batch"] == 1
    assert asked["/v1/executions/ID/children-flow"] == 1
    # No child is looked at before the parent parks.
    assert asked["/v1/executions/ID/result"] <= 20 + 2
    assert asked["/v1/executions/ID"] == 0
