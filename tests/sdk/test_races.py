"""The first of several: races, asyncio around waits, and limits that asyncio cannot keep."""

import asyncio
from typing import Any

import pytest

from flowfabric import ConfigError, Context, ExecutionFailed, FlowFabric, Run
from tests.sdk.until import reaches


async def told(run: Run[Any]) -> str:
    """Why it failed, or what it returned."""
    try:
        return str(await run.result(timeout="20s"))
    except ExecutionFailed as failed:
        return failed.reason


async def test_the_first_wait_wins_and_the_losers_are_given_up(fabric: FlowFabric) -> None:
    @fabric.task
    async def quick(n: int) -> int:
        return n

    @fabric.task
    async def endless(ctx: Context) -> None:
        await ctx.sleep("1h")

    @fabric.task
    async def work(ctx: Context) -> list[object]:
        return [
            await ctx.race(signal=ctx.wait_for("go"), late=ctx.sleep("20ms")),
            await ctx.race(other=ctx.call(endless), done=ctx.call(quick, 3), late=ctx.sleep("1h")),
            (await ctx.race(late=ctx.sleep("1h"), signal=ctx.wait_for("later")))[0],
            (await ctx.wait_for("later", timeout="1h")) is not None,
        ]

    run = await work.submit()
    for number in range(2):
        await run.signal("later", number)
    async with fabric.worker():
        assert await run.result(timeout="20s") == [["late", None], ["done", 3], "signal", True]
        states = {one.public_state for one in (await run.info()).children}
        assert states == {"completed", "cancelled"}
        assert (await run.info()).mail_count == 0


async def test_a_signal_that_loses_stays_for_the_next_wait(fabric: FlowFabric) -> None:
    @fabric.task
    async def work(ctx: Context) -> list[object]:
        first, _ = await ctx.race(early=ctx.wait_for("a"), late=ctx.wait_for("b"))
        second = await ctx.wait_for("b")
        return [first, second and second.payload]

    run = await work.submit()
    await run.signal("a")
    await run.signal("b", 2)
    async with fabric.worker():
        assert await run.result(timeout="20s") == ["early", 2]


async def test_people_race_against_time_and_signals(fabric: FlowFabric) -> None:
    @fabric.task
    async def work(ctx: Context) -> list[object]:
        name, decision = await ctx.race(
            stop=ctx.wait_for("stop"), said=ctx.approve("ship it?", approvers=2)
        )
        waitpoint = await ctx.waitpoint("paid")
        late, _ = await ctx.race(paid=ctx.wait_for("paid", on=waitpoint), late=ctx.sleep("20ms"))
        return [name, bool(decision), sorted(decision.by), late]

    async with fabric.worker():
        run = await work.submit()
        await run.signal("approved")
        await reaches(fabric, run, "suspended")
        for person in ("ada", "bob"):
            await run.approve(person)
        assert await run.result(timeout="20s") == ["said", True, ["ada", "bob"], "late"]


async def test_the_failure_of_the_first_is_raised(fabric: FlowFabric) -> None:
    @fabric.task
    async def fails() -> None:
        raise ValueError("no")

    @fabric.task
    async def work(ctx: Context) -> str:
        try:
            await ctx.race(child=ctx.call(fails), late=ctx.sleep("1h"))
        except ExecutionFailed as failed:
            await ctx.sleep("10ms")
            return failed.reason
        return "nothing"

    async with fabric.worker():
        assert await work.call() == "ValueError: no"


async def test_what_is_no_wait_cannot_race(fabric: FlowFabric) -> None:
    @fabric.task
    async def work(ctx: Context, which: str) -> None:
        match which:
            case "step":
                await ctx.race(a=ctx.sleep("1s"), b=ctx.step("b", int))
            case "one":
                await ctx.race(a=ctx.sleep("1s"))
            case _:
                await ctx.race(a=ctx.approve("a"), b=ctx.approve("b"))

    async with fabric.worker():
        for which, why in (("step", "`timeout=`"), ("one", "2 to 100"), ("two", "at most one")):
            assert why in await told(await work.submit(which))


async def test_asyncio_around_waiting_calls_means_what_it_says(fabric: FlowFabric) -> None:
    entered = 0

    @fabric.task
    async def double(n: int) -> int:
        return 2 * n

    @fabric.task
    async def work(ctx: Context) -> list[object]:
        nonlocal entered
        entered += 1
        both = await asyncio.gather(ctx.wait_for("a"), ctx.sleep("20ms"), ctx.call(double, 1))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.call(double, n)) for n in range(3)]
            step = group.create_task(ctx.step("step", lambda: 7))
        signal = asyncio.create_task(ctx.wait_for("never"))
        nap = asyncio.create_task(ctx.sleep("20ms"))
        done, pending = await asyncio.wait([signal, nap], return_when=asyncio.FIRST_COMPLETED)
        first = (nap in done, signal in pending)
        signal.cancel()
        await ctx.sleep("10ms")
        return [both[0] is not None, both[2], [one.result() for one in tasks], step.result(), first]

    async with fabric.worker():
        run = await work.submit()
        await run.signal("a")
        found = await run.result(timeout="20s")
    assert found == [True, 2, [0, 2, 4], 7, [True, True]]
    assert entered > 1


async def test_a_handler_that_swallows_a_pause_gets_it_again(fabric: FlowFabric) -> None:
    swallowed: list[str] = []

    @fabric.task
    async def work(ctx: Context) -> str:
        try:
            await ctx.sleep("500ms")
        except BaseException as pause:
            swallowed.append(type(pause).__name__)
            if len(swallowed) == 1:
                raise OSError("made of it") from pause
            try:
                await ctx.step("behind", lambda: 1)
            except BaseException as again:
                swallowed.append(type(again).__name__)
            return "ignored"
        return "done"

    async with fabric.worker():
        assert await work.call() == "done"
    assert swallowed[0] == "Paused"


async def test_what_is_awaited_outside_does_not_hold_a_handler(fabric: FlowFabric) -> None:
    forever = asyncio.Event()

    @fabric.task
    async def work(ctx: Context) -> object:
        signal = asyncio.create_task(ctx.wait_for("go"))
        outside = asyncio.create_task(forever.wait())
        await asyncio.wait([signal, outside], return_when=asyncio.FIRST_COMPLETED)
        outside.cancel()
        found = await signal
        return found and found.payload

    async with fabric.worker(concurrency=1):
        run = await work.submit()
        await reaches(fabric, run, "suspended")
        await run.signal("go", 5)
        assert await run.result(timeout="20s") == 5


@pytest.mark.parametrize("kind", ["wait_for", "wait", "timeout", "timeout of a group"])
async def test_limits_of_asyncio_are_refused_where_they_would_be_forgotten(
    fabric: FlowFabric, kind: str
) -> None:
    @fabric.task
    async def work(ctx: Context) -> None:
        match kind:
            case "wait_for":
                await asyncio.wait_for(ctx.wait_for("go"), 5)
            case "wait":
                await asyncio.wait([asyncio.create_task(ctx.sleep("1h"))], timeout=5)
            case "timeout":
                async with asyncio.timeout(5):
                    await ctx.sleep("1h")
            case _:
                async with asyncio.timeout(5), asyncio.TaskGroup() as group:
                    group.create_task(ctx.sleep("1h"))
                    group.create_task(ctx.wait_for("go"))

    async with fabric.worker():
        reason = await told(await work.submit())
    assert "ctx.race" in reason
    assert "ConfigError" in reason or "config" in reason


async def test_limits_of_asyncio_that_are_over_or_around_steps_are_kept(
    fabric: FlowFabric,
) -> None:
    @fabric.task
    async def work(ctx: Context) -> str:
        async with asyncio.timeout(5):
            await ctx.step("quick", lambda: 1)
        await asyncio.wait_for(ctx.step("too", lambda: 2), 5)
        await ctx.sleep("10ms")
        return "done"

    async with fabric.worker():
        assert await work.call() == "done"


async def test_a_step_cannot_wait(fabric: FlowFabric) -> None:
    @fabric.task
    async def work(ctx: Context) -> str:
        try:
            await ctx.step("nap", ctx.sleep, "1h")
        except ConfigError as fault:
            return str(fault)
        return ""

    async with fabric.worker():
        assert "a step cannot wait" in await work.call()
