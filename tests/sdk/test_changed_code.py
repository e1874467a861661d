"""A handler whose code changes while executions are under way."""

from collections.abc import Awaitable, Callable

import pytest

from flowfabric import Context, ExecutionFailed, FlowFabric, SyncContext
from tests.sdk.until import reaches

PAUSE = "300ms"


class Releases:
    """Which code of a task is deployed."""

    def __init__(self, first: Callable[[Context], Awaitable[object]]) -> None:
        self.code = first


async def test_patched_is_false_for_those_that_have_passed_and_true_for_others(
    fabric: FlowFabric,
) -> None:
    async def first(ctx: Context) -> str:
        await ctx.step("old", str, "old")
        await ctx.sleep(PAUSE)
        return "old"

    async def second(ctx: Context) -> str:
        answers = [ctx.patched("new way")]
        if answers[0]:
            await ctx.step("new", str, "new")
        else:
            await ctx.step("old", str, "old")
        await ctx.sleep(PAUSE)
        # Behind everything recorded it is true, but this name was answered before.
        answers += [ctx.patched("new way"), ctx.patched("behind")]
        await ctx.sleep(PAUSE)
        return str(answers)

    releases = Releases(first)

    @fabric.task
    async def order(ctx: Context) -> object:
        return await releases.code(ctx)

    async with fabric.worker():
        old = await order.submit()
        await reaches(fabric, old, "delayed")
        releases.code = second
        new = await order.submit()
        assert await old.result(timeout="20s") == "[False, False, True]"
        assert await new.result(timeout="20s") == "[True, True, True]"
        journal = await fabric.admin.journal(old.id)
    assert [one.name for one in journal.items if one.name.startswith("ff.patched")] == [
        "ff.patched new way",
        "ff.patched behind",
    ]


async def test_an_answer_survives_a_retry(fabric: FlowFabric) -> None:
    answers: list[bool] = []

    @fabric.task(retries=1, backoff=0)
    async def order(ctx: Context) -> None:
        answers.append(ctx.patched("new way"))
        await ctx.step("work", abs, -1)
        if not ctx.info.attempt_index:
            raise ValueError("again")

    async with fabric.worker():
        await order.call()
    assert answers == [True, True]


async def test_a_blocking_handler_asks_too(fabric: FlowFabric) -> None:
    @fabric.task
    def order(ctx: SyncContext) -> bool:
        return bool(ctx.patched("new way"))

    async with fabric.worker():
        assert await order.call() is True


@pytest.mark.parametrize("name", ["", "ff.mine", "x" * 1001])
async def test_a_name_that_cannot_be_recorded_is_refused(fabric: FlowFabric, name: str) -> None:
    @fabric.task
    async def order(ctx: Context) -> None:
        ctx.patched(name)

    async with fabric.worker():
        with pytest.raises(ExecutionFailed, match="name: "):
            await order.call()
