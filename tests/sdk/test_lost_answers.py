"""Every consuming call with its answer lost on the way: repeated, and done once."""

import asyncio

import pytest

from flowfabric import Context, FlowFabric
from flowfabric.operations.workers import ClaimReply, FinishReply
from tests.sdk.dropping import Dropping, dropping
from tests.sdk.until import reaches

CALLS = [
    ("claim", 1),
    ("finish", 1),
    ("finish", 2),
    ("suspend", 1),
    ("append_journal", 1),
    ("append_journal", 2),
    ("append_journal", 5),
    ("append_frames", 1),
    ("append_frames", 2),
    ("report_usages", 1),
    ("reserve", 1),
    ("commit_reservation", 1),
    ("submit_child", 1),
    ("create_waitpoint", 1),
]


async def _give_up(fabric: FlowFabric, port: Dropping) -> None:
    """What was claimed by an answer that nobody heard: its lease ends now."""
    answer = await port.lost
    if isinstance(answer, FinishReply | ClaimReply):
        claims = answer.claimed if isinstance(answer, FinishReply) else answer.items
    else:
        claims = []
    for claim in claims:
        await fabric.admin.revoke_lease(claim.execution_id)


@pytest.mark.parametrize(("method", "at"), CALLS)
async def test_a_lost_answer_changes_nothing(fabric: FlowFabric, method: str, at: int) -> None:
    budget = await fabric.budget("purse", hard={"coins": 100})
    unreliable, port = await dropping(fabric, method, at)
    done: list[str] = []

    @unreliable.task()
    async def half(n: int) -> int:
        return n // 2

    @unreliable.task(budget="purse")
    async def everything(ctx: Context) -> list[object]:
        async def once(name: str) -> str:
            done.append(name)
            await ctx.stream(name)
            return name

        first = await ctx.step("first", once, "one")
        await ctx.spend(coins=3)
        async with ctx.reserve(coins=9) as hold:
            await hold.commit(coins=4)
        child = await ctx.call(half, 10)
        waitpoint = await ctx.waitpoint(expires="1h")
        signal = await ctx.wait_for("go")
        second = await ctx.step("second", once, "two")
        assert signal is not None
        assert waitpoint.waitpoint_id
        return [first, child, signal.payload, second]

    # No lease ends by itself, or a stalled machine would have a step run a second time.
    async with unreliable.worker(lease="60s"):
        run = await everything.submit()
        giving_up = asyncio.create_task(_give_up(fabric, port))
        await reaches(fabric, run, "suspended")
        await run.signal("go", "went")
        assert await run.result(timeout="30s") == ["one", 5, "went", "two"]
        frames = [frame.text async for frame in run.stream()]
    await asyncio.wait_for(giving_up, 20)
    assert done == ["one", "two"]
    assert frames == ["one", "two"]
    status = await budget.status()
    assert (status.usage, status.reserved.get("coins", 0)) == ({"coins": 7}, 0)
