"""An execution that failed or was parked goes on with what it has paid for."""

from collections import Counter
from typing import Any

import pytest

from flowfabric import BudgetExceeded, Context, ExecutionFailed, FlowFabric, Run
from flowfabric.errors import InvalidInput
from tests.sdk.until import reaches

PAUSE = "60ms"


class World:
    """What the outside observed, and whether the bug is still there."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.is_broken = True

    def do(self, name: str) -> str:
        self.done[name] += 1
        return f"{name} {self.done[name]}"

    def breaks(self) -> str:
        if self.is_broken:
            raise ValueError("a bug")
        return self.do("mended")


async def failed(run: Run[Any]) -> None:
    with pytest.raises(ExecutionFailed):
        await run.result(timeout="20s")


async def test_paid_steps_are_not_paid_twice_once_the_bug_is_fixed(fabric: FlowFabric) -> None:
    world = World()
    await fabric.budget("tokens", hard={"tokens": 100})

    @fabric.task(retries=1, backoff=0)
    async def order(ctx: Context) -> list[str]:
        first = await ctx.step("pay", world.do, "pay")
        await ctx.spend("tokens", tokens=10)
        await ctx.sleep(PAUSE)
        return [first, await ctx.step("ship", world.breaks)]

    async with fabric.worker():
        run = await order.submit()
        await failed(run)
        world.is_broken = False
        await run.replay("fixed", steps="keep")
        assert await run.result(timeout="20s") == ["pay 1", "mended 1"]
    assert world.done == {"pay": 1, "mended": 1}
    assert (await (await fabric.budget("tokens")).status()).usage == {"tokens": 10}


async def test_a_failure_that_the_handler_went_on_from_and_raised_again_is_tried_anew(
    fabric: FlowFabric,
) -> None:
    """It is recorded, and so a replay with every step could only meet it again."""
    world = World()

    @fabric.task()
    async def order(ctx: Context) -> str:
        await ctx.step("pay", world.do, "pay")
        try:
            return str(await ctx.step("ship", world.breaks))
        except ValueError:
            await ctx.step("tell", world.do, "tell")
            raise

    async with fabric.worker():
        run = await order.submit()
        await failed(run)
        await run.replay(steps="keep")
        with pytest.raises(ExecutionFailed, match="the handler went on with 'tell'"):
            await run.result(timeout="20s")
        world.is_broken = False
        await run.replay(steps="keep")
        assert await run.result(timeout="20s") == "mended 1"
    assert world.done == {"pay": 1, "tell": 2, "mended": 1}


async def test_it_goes_on_before_a_step(fabric: FlowFabric) -> None:
    world = World()

    @fabric.task()
    async def order(ctx: Context) -> list[str]:
        return [str(await ctx.step("pay", world.do, f"pay {n}")) for n in range(3)]

    async with fabric.worker():
        run = await order.submit()
        assert await run.result(timeout="20s") == ["pay 0 1", "pay 1 1", "pay 2 1"]
        await run.replay(steps_until="pay#2")
        assert await run.result(timeout="20s") == ["pay 0 1", "pay 1 2", "pay 2 2"]
        with pytest.raises(InvalidInput, match="no step 'pai' is recorded; there is 'pay'"):
            await run.replay(steps_until="pai")


async def test_a_child_that_ended_with_its_parent_goes_on_first(fabric: FlowFabric) -> None:
    world = World()

    @fabric.task()
    async def pack(ctx: Context) -> str:
        await ctx.step("box", world.do, "box")
        signal = await ctx.wait_for("go")
        assert signal is not None
        return f"packed {signal.payload}"

    @fabric.task()
    async def order(ctx: Context) -> list[str]:
        child = await ctx.submit(pack)
        await ctx.step("note", children.append, child.id)
        await ctx.sleep(PAUSE)
        await ctx.step("ship", world.breaks)
        return [await child.result()]

    children: list[str] = []
    async with fabric.worker():
        run = await order.submit()
        await failed(run)
        (child,) = children
        assert (await fabric.run(child).info()).public_state == "cancelled"
        world.is_broken = False
        await run.replay(steps="keep")
        assert (await fabric.run(child).info()).public_state != "cancelled"
        await reaches(fabric, fabric.run(child), "suspended")
        await fabric.run(child).signal("go", "well")
        assert await run.result(timeout="20s") == ["packed well"]
    assert world.done == {"box": 1, "mended": 1}
    assert children == [child]


async def test_a_reservation_without_commit_is_asked_anew(fabric: FlowFabric) -> None:
    world = World()
    await fabric.budget("tokens", hard={"tokens": 100})

    @fabric.task()
    async def order(ctx: Context) -> str:
        async with ctx.reserve("tokens", tokens=60) as held:
            await ctx.step("pay", world.do, "pay")
            await ctx.step("ship", world.breaks)
            await held.commit(tokens=50)
        return "over"

    @fabric.task()
    async def greedy(ctx: Context) -> None:
        await ctx.spend("tokens", tokens=70)

    async with fabric.worker():
        run = await order.submit()
        await failed(run)
        await greedy.call()
        world.is_broken = False
        await run.replay(steps="keep")
        with pytest.raises(ExecutionFailed) as caught:
            await run.result(timeout="20s")
        assert caught.value.category == "budget_exceeded"
    assert world.done == {"pay": 1}
    assert BudgetExceeded.__name__ in caught.value.reason


async def test_a_parked_execution_starts_over(fabric: FlowFabric) -> None:
    world = World()

    @fabric.task()
    async def order(ctx: Context) -> str:
        return str(await ctx.step("pay", world.do, names[-1]) + await paused(ctx))

    async def paused(ctx: Context) -> str:
        await ctx.sleep("300ms")
        return "."

    names = ["pay"]
    async with fabric.worker():
        run = await order.submit()
        await reaches(fabric, run, "delayed")
        names.append("paid")
        await reaches(fabric, run, "suspended")
        await run.replay()
        assert await run.result(timeout="20s") == "paid 1."
    assert world.done == {"pay": 1, "paid": 1}


async def test_what_dropped_steps_had_taken_lies_in_the_mailbox_again(fabric: FlowFabric) -> None:
    @fabric.task()
    async def chat(ctx: Context) -> list[object]:
        first = await ctx.wait_for("word")
        await ctx.step("mark", abs, -1)
        second, looked = await ctx.wait_for("word"), await ctx.receive("other")
        assert first is not None
        assert second is not None
        return [first.payload, second.payload, looked.payload if looked else None]

    async with fabric.worker():
        run = await chat.submit()
        for name, word in (("word", "a"), ("other", "x"), ("word", "b"), ("word", "c")):
            await run.signal(name, word)
        assert await run.result(timeout="20s") == ["a", "b", "x"]
        await run.replay(steps_until="mark")
        assert await run.result(timeout="20s") == ["a", "b", "x"]
        await run.replay(steps="keep")
        assert await run.result(timeout="20s") == ["a", "b", "x"]
        await run.replay(steps_until="ff.wait_for")
        assert await run.result(timeout="20s") == ["a", "b", "x"]
        assert (await run.info()).mail_count == 1
