"""Children of a handler: several at once, with a time limit, and progress that arrives."""

import asyncio
from typing import Any

import pytest

from flowfabric import CallTimeout, ConfigError, Context, FlowFabric
from flowfabric.errors import Unreachable
from flowfabric.worker.progress import ProgressSender, ProgressUpdate
from tests.sdk.until import reaches

SOON_S = 20


async def result_of(fabric: FlowFabric, task: Any, *args: Any) -> Any:
    async with fabric.worker():
        return await (await task.submit(*args)).result(timeout="30s")


# ---- gather


async def test_gather_takes_bound_calls_and_steps(fabric: FlowFabric) -> None:
    steps: list[str] = []

    def noted(name: str) -> str:
        steps.append(name)
        return name

    @fabric.task()
    async def square(n: int) -> int:
        return n * n

    @fabric.task()
    async def parent(ctx: Context) -> list[Any]:
        found: list[Any] = await ctx.gather(
            square.bind(2), ctx.step("a", noted, "a"), ctx.call(square, 3), ctx.sleep("30ms")
        )
        return found

    assert await result_of(fabric, parent) == [4, "a", 9, None]
    assert steps == ["a"]


async def test_gather_raises_the_first_failure_when_all_have_ended(fabric: FlowFabric) -> None:
    ended: list[str] = []

    @fabric.task(retries=0)
    async def child(name: str) -> None:
        ended.append(name)
        raise ValueError(name)

    def failing() -> None:
        raise KeyError("step")

    @fabric.task(retries=0)
    async def parent(ctx: Context) -> str:
        try:
            await ctx.gather(child.bind("one"), ctx.step("failing", failing), child.bind("two"))
        except Exception as fault:
            return f"{type(fault).__name__} {fault}"
        return "nothing"

    assert "one" in await result_of(fabric, parent)
    assert sorted(ended) == ["one", "two"]


async def test_what_cannot_be_awaited_is_refused_by_gather(fabric: FlowFabric) -> None:
    begun: list[int] = []

    @fabric.task(retries=0)
    async def child() -> None:
        begun.append(1)

    @fabric.task(retries=0)
    async def parent(ctx: Context) -> str:
        with pytest.raises(ConfigError, match=r"gather: expected calls .* got int"):
            await ctx.gather(ctx.call(child), 7)  # type: ignore[arg-type]
        return "refused"

    assert await result_of(fabric, parent) == "refused"
    assert begun == []


# ---- a time limit


async def test_a_call_that_takes_too_long_is_ended(fabric: FlowFabric) -> None:
    cancelled = asyncio.Event()
    caught: list[str] = []

    @fabric.task()
    async def slow() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    @fabric.task()
    async def parent(ctx: Context) -> str:
        try:
            await ctx.call(slow, timeout="300ms")
        except TimeoutError as fault:
            caught.append(f"{type(fault).__name__}: {fault}")
        await ctx.step("go on", int)
        await ctx.sleep("100ms")
        return "gave up"

    async with fabric.worker(lease="60s"):
        run = await parent.submit()
        assert await run.result(timeout="30s") == "gave up"
        async with asyncio.timeout(SOON_S):
            await cancelled.wait()
    # The same each time the handler is entered.
    assert caught[0].startswith(f"{CallTimeout.__name__}: ")
    assert caught[0].endswith("slow had not ended after 0.3 s")
    assert set(caught) == {caught[0]}
    assert len(caught) > 1


async def test_a_call_within_its_time_answers(fabric: FlowFabric) -> None:
    @fabric.task()
    async def quick(timeout: int) -> int:
        return timeout

    @fabric.task()
    async def parent(ctx: Context) -> int:
        # A parameter of the task has the name: it is an argument.
        first = await ctx.call(quick, timeout=7)
        (second,) = await ctx.gather(ctx.call(quick, 8))
        return first + second

    assert await result_of(fabric, parent) == 15


async def test_a_child_with_a_key_has_no_time_limit(fabric: FlowFabric) -> None:
    @fabric.task(retries=0)
    async def child() -> None: ...

    @fabric.task(retries=0)
    async def parent(ctx: Context) -> str:
        with pytest.raises(ConfigError, match="idempotency key"):
            await ctx.call(child.options(idempotency_key="mine"), timeout="1s")
        return "refused"

    assert await result_of(fabric, parent) == "refused"


# ---- progress


async def test_progress_is_merged_and_arrives_before_the_end(fabric: FlowFabric) -> None:
    @fabric.task()
    async def work(ctx: Context) -> None:
        ctx.progress(10, "begun")
        ctx.progress(50)
        ctx.progress(message="nearly done")

    async with fabric.worker():
        run = await work.submit()
        await run.result(timeout="30s")
    info = await run.info()
    assert (info.progress_pct, info.progress_message) == (50, "nearly done")


async def test_progress_arrives_before_a_pause(fabric: FlowFabric) -> None:
    @fabric.task()
    async def work(ctx: Context) -> None:
        ctx.progress(20, "waiting")
        await ctx.wait_for("go")

    async with fabric.worker():
        run = await work.submit()
        await reaches(fabric, run, "suspended")
        info = await run.info()
        assert (info.progress_pct, info.progress_message) == (20, "waiting")
        await run.cancel("enough")


async def test_progress_is_sent_at_most_once_a_second() -> None:
    now, thrice = 100.0, asyncio.Event()
    sent: list[tuple[float, int | None, str | None]] = []

    async def pause(seconds: float) -> None:
        nonlocal now
        now += seconds
        for _ in range(30):
            sender.report(len(sent), None)

    async def send(update: ProgressUpdate) -> None:
        sent.append((now, update.pct, update.message))
        if len(sent) < 3:
            sender.report(99, None)
        else:
            thrice.set()

    sender = ProgressSender(send, lambda: now, pause)
    sender.report(50, "first")
    async with asyncio.timeout(SOON_S):
        await thrice.wait()
    assert sent == [(100.0, 0, "first"), (101.0, 1, None), (102.0, 2, None)]


async def test_a_report_of_progress_that_fails_goes_with_the_next() -> None:
    sent: list[ProgressUpdate] = []

    async def send(update: ProgressUpdate) -> None:
        sent.append(update)
        if len(sent) == 1:
            raise Unreachable("the server is away")

    sender = ProgressSender(send)
    sender.report(10, "begun")
    await sender.flush()
    sender.report(20, None)
    await sender.flush()
    assert sent == [ProgressUpdate(10, "begun"), ProgressUpdate(20, "begun")]
