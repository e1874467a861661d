"""The mailbox in programs: signals reach an execution whatever it is doing, each once, in order."""

import asyncio

import pytest

from flowfabric import ConfigError, Context, FlowFabric
from flowfabric.core.rules.signals import Accepted, Duplicate
from flowfabric.errors import ExecutionNotActive
from tests.sdk.until import reaches


async def test_signals_come_before_between_and_during_waits(fabric: FlowFabric) -> None:
    arrived = asyncio.Event()
    sent = asyncio.Event()

    @fabric.task
    async def collect(ctx: Context) -> list[object]:
        first = await ctx.wait_for("n", as_=int)

        async def between() -> None:
            arrived.set()
            await sent.wait()

        await ctx.step("between", between)
        second = await ctx.wait_for("n", as_=int)
        third = await ctx.wait_for("n", as_=int)
        return [one.payload for one in (first, second, third) if one]

    run = await collect.submit()
    await run.signal("n", 1)
    async with fabric.worker():
        await arrived.wait()
        await run.signal("n", 2)
        sent.set()
        await reaches(fabric, run, "suspended")
        assert await run.signal("n", 3, id="last") == Accepted("last", "resume_condition_satisfied")
        assert await run.result(timeout="20s") == [1, 2, 3]
        assert await run.signal("n", 3, id="last") == Duplicate("last")
        with pytest.raises(ExecutionNotActive):
            await run.signal("n", 4)


async def test_a_wait_for_several_takes_the_oldest_of_each(fabric: FlowFabric) -> None:
    @fabric.task
    async def collect(ctx: Context) -> list[object]:
        both = await ctx.wait_for("a", "b")
        rest = [await ctx.receive("b"), await ctx.receive(), await ctx.receive()]
        assert both is not None
        return [one and one.payload for one in (*both, *rest)]

    run = await collect.submit()
    for name, payload in (("b", 1), ("b", 2), ("a", 3), ("c", 4)):
        await run.signal(name, payload)
    async with fabric.worker():
        assert await run.result(timeout="20s") == [3, 1, 2, 4, None]


async def test_what_receive_found_is_recorded_also_nothing(fabric: FlowFabric) -> None:
    @fabric.task
    async def look(ctx: Context) -> list[object]:
        before = await ctx.receive("go")
        signal = await ctx.wait_for("go")
        after = await ctx.receive("go")
        return [one and one.payload for one in (before, signal, after)]

    async with fabric.worker():
        run = await look.submit()
        await reaches(fabric, run, "suspended")
        await run.signal("go", 1)
        assert await run.result(timeout="20s") == [None, 1, None]


async def test_approvals_and_callbacks_never_look_into_the_mailbox(fabric: FlowFabric) -> None:
    @fabric.task
    async def decide(ctx: Context) -> list[bool]:
        waitpoint = await ctx.waitpoint("paid")
        approved = await ctx.approve("ship it?")
        paid = await ctx.wait_for("paid", on=waitpoint, timeout="20ms")
        return [bool(approved), paid is not None]

    async with fabric.worker():
        run = await decide.submit()
        for name in ("approved", "paid"):
            await run.signal(name)
        await reaches(fabric, run, "suspended")
        await run.signal("approved")
        assert await run.state() == "suspended"
        await run.reject("ada")
        assert await run.result(timeout="20s") == [False, False]
        assert [one.signal_name for one in (await run.info()).mailbox] == [
            "approved",
            "paid",
            "approved",
        ]


async def test_waits_that_take_turns_take_each_signal_once(fabric: FlowFabric) -> None:
    @fabric.task
    async def collect(ctx: Context) -> list[object]:
        found = await asyncio.gather(*(ctx.receive("n") for _ in range(4)))
        return [one and one.payload for one in found]

    run = await collect.submit()
    for number in range(3):
        await run.signal("n", number)
    async with fabric.worker():
        assert await run.result(timeout="20s") == [0, 1, 2, None]


async def test_no_step_asks_for_signals(fabric: FlowFabric) -> None:
    @fabric.task
    async def look(ctx: Context) -> str:
        try:
            await ctx.step("look", ctx.receive)
        except ConfigError as fault:
            return str(fault)
        return ""

    async with fabric.worker():
        assert "outside" in await look.call()


@pytest.mark.parametrize("each", [2, pytest.param(20, marks=pytest.mark.long)])
async def test_many_senders_before_the_start_are_all_heard_in_order(
    fabric: FlowFabric, each: int
) -> None:
    senders = 50

    @fabric.task
    async def collect(ctx: Context) -> list[list[int]]:
        found = [await ctx.wait_for("n", as_=list[int]) for _ in range(senders * each)]
        return [one.payload for one in found if one]

    run = await collect.submit()

    async def send(sender: int) -> None:
        for number in range(each):
            await run.signal("n", [sender, number])

    await asyncio.gather(*map(send, range(senders)))
    async with fabric.worker():
        heard = await run.result(timeout="150s")
    assert len(heard) == senders * each
    for sender in range(senders):
        own = [number for who, number in heard if who == sender]
        assert own == list(range(each))
    assert (await run.info()).mail_count == 0
