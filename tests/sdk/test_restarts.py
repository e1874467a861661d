"""`ctx.restart`: a handler that goes on for long begins anew, as the same execution."""

import asyncio
from collections import Counter

import pytest

from flowfabric import Context, ExecutionFailed, FlowFabric, SyncContext
from flowfabric.errors import NonRetryable
from tests.sdk.until import reaches


async def test_each_round_begins_with_the_arguments_it_was_given(fabric: FlowFabric) -> None:
    entered: list[tuple[int, str]] = []

    @fabric.task(retries=1, backoff=0)
    async def count(ctx: Context, n: int, word: str = "a") -> str:
        entered.append((n, word))
        await ctx.step("work", abs, -n)
        if n == 2 and not ctx.info.retry_count:
            raise ValueError("tried again in its round")
        if n < 3:
            await ctx.restart(n + 1, word=word + "b")
        return f"{n} {word}"

    async with fabric.worker():
        run = await count.submit(0)
        assert await run.result(timeout="30s") == "3 abbb"
        assert len((await fabric.admin.journal(run.id)).items) == 1
    assert entered == [(0, "a"), (1, "ab"), (2, "abb"), (2, "abb"), (3, "abbb")]


async def test_it_cannot_be_caught_and_waits_for_steps_under_way(fabric: FlowFabric) -> None:
    done: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.05)
        done.append("slow")

    @fabric.task
    async def count(ctx: Context, n: int) -> int:
        if n:
            done.append("round 1")
            return n
        under_way = asyncio.ensure_future(ctx.step("slow", slow))
        await asyncio.sleep(0)
        try:
            await ctx.restart(1)
        except BaseException:
            done.append("caught")
            under_way.done()
        return -1

    async with fabric.worker():
        assert await count.call(0) == 1
    assert done == ["caught", "slow", "round 1"]


async def test_a_wait_of_another_round_is_another_wait(fabric: FlowFabric) -> None:
    @fabric.task
    async def chat(ctx: Context, told: list[str]) -> list[str]:
        signal = await ctx.wait_for("word")
        assert signal is not None
        told = [*told, signal.payload]
        if len(told) < 3:
            await ctx.restart(told)
        return told

    async with fabric.worker():
        run = await chat.submit([])
        for word in "abc":
            await run.signal("word", word)
        assert await run.result(timeout="20s") == ["a", "b", "c"]


async def test_children_of_the_round_before_end_and_new_ones_are_made(fabric: FlowFabric) -> None:
    ids: list[str] = []

    @fabric.task
    async def waits(ctx: Context) -> None:
        await ctx.wait_for("never")

    @fabric.task
    async def parent(ctx: Context, n: int) -> int:
        child = await ctx.submit(waits)
        await ctx.step("note", ids.append, child.id)
        if n < 2:
            await ctx.restart(n + 1)
        await child.result()
        return n

    async with fabric.worker():
        run = await parent.submit(0)
        await reaches(fabric, run, "waiting_children")
        states = [(await fabric.run(one).state()) for one in ids]
        assert states[:2] == ["cancelled", "cancelled"]
        assert len(set(ids)) == 3
        await run.cancel("enough")


async def test_a_blocking_handler_restarts(fabric: FlowFabric) -> None:
    @fabric.task
    def count(ctx: SyncContext, n: int) -> int:
        if n < 2:
            ctx.restart(n + 1)
        return n

    async with fabric.worker():
        assert await count.call(0) == 2


async def test_arguments_that_do_not_fit_are_a_mistake_of_the_handler(fabric: FlowFabric) -> None:
    @fabric.task(retries=3, backoff=0)
    async def count(ctx: Context, n: int) -> None:
        try:
            await ctx.restart(1, 2, 3)
        except Exception as fault:
            raise NonRetryable("wrong") from fault

    @fabric.task
    async def large(ctx: Context, text: str) -> None:
        await ctx.restart("x" * 2_000_000)

    @fabric.task
    async def nested(ctx: Context) -> None:
        await ctx.step("inner", ctx.restart)

    async with fabric.worker():
        with pytest.raises(ExecutionFailed, match="wrong"):
            await count.call(0)
        with pytest.raises(ExecutionFailed, match="the next round cannot begin"):
            await large.call("")
        with pytest.raises(ExecutionFailed, match="restart: a step runs once"):
            await nested.call()


async def test_spending_counts_in_every_round(fabric: FlowFabric) -> None:
    seen: Counter[int] = Counter()
    budget = await fabric.budget("tokens", hard={"tokens": 100})

    @fabric.task
    async def count(ctx: Context, n: int) -> None:
        await ctx.spend("tokens", tokens=1)
        seen[n] += 1
        if n < 4:
            await ctx.restart(n + 1)

    async with fabric.worker():
        await count.call(0)
    assert (await budget.status()).usage == {"tokens": 5}
