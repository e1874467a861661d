"""A handler whose code changes while executions are under way."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

import pytest

from flowfabric import Context, ExecutionFailed, FlowFabric, SyncContext
from flowfabric.core.plan import Family
from flowfabric.operations.events import EventScope, OperatorEvent
from tests.sdk.until import reaches

PAUSE = "300ms"
_OPERATOR: Final[tuple[Family, ...]] = ("operator",)


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


# ---- code that does not fit


async def parks(fabric: FlowFabric) -> None:
    """Wait until operators are told that an execution was parked."""
    port = await fabric.submitter()
    async with (
        asyncio.timeout(20),
        aclosing(await port.events(_OPERATOR, EventScope(), "oldest")) as log,
    ):
        async for event in log:
            if isinstance(event, OperatorEvent) and event.event_type == "parked":
                return


async def test_a_bad_release_parks_and_the_rollback_goes_on_with_no_step_run_twice(
    fabric: FlowFabric, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    async def good(ctx: Context) -> str:
        paid = await ctx.step("pay", paying, 10)
        signal = await ctx.wait_for("ship")
        assert signal is not None
        return f"{paid}, {signal.payload}"

    async def bad(ctx: Context) -> str:
        try:
            await ctx.step("pay", paying, 11)
        except Exception:
            done.append("the handler went on")
        return "nonsense"

    def paying(amount: int) -> str:
        done.append(f"pay {amount}")
        return f"paid {amount}"

    releases = Releases(good)

    @fabric.task(retries=3, backoff=0)
    async def order(ctx: Context) -> object:
        return await releases.code(ctx)

    async with fabric.worker():
        run = await order.submit()
        await reaches(fabric, run, "suspended")
        releases.code = bad
        await run.signal("ship", "tomorrow")
        await parks(fabric)
        assert await run.state() == "suspended"
        (blocker,) = (await run.explain()).blockers
        assert "paying(10)" in blocker.detail
        assert "paying(11)" in blocker.detail
        releases.code = good
        await fabric.admin.resume(run.id)
        assert await run.result(timeout="20s") == "paid 10, tomorrow"
    assert done == ["pay 10"]
    (warning,) = [one for one in caplog.records if "parked" in one.getMessage()]
    assert warning.levelname == "WARNING"
    assert "paying" not in warning.getMessage()


async def test_a_handler_cannot_catch_it_in_a_group_either(fabric: FlowFabric) -> None:
    @fabric.task
    async def order(ctx: Context) -> str:
        entries.append(1)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.step("pay", str, len(entries)))
        except BaseException:
            return "caught"
        await ctx.sleep(PAUSE)
        return "over"

    entries: list[int] = []
    async with fabric.worker():
        run = await order.submit()
        await reaches(fabric, run, "suspended")
        await run.cancel("seen enough")
    assert len(entries) == 2


async def test_a_task_may_fail_for_it_instead_and_is_not_retried(fabric: FlowFabric) -> None:
    entries: list[int] = []

    @fabric.task(retries=3, backoff=0, on_nondeterminism="fail")
    async def order(ctx: Context) -> str:
        entries.append(1)
        try:
            await ctx.step("pay", str, len(entries))
        except Exception:
            return "caught"
        await ctx.sleep(PAUSE)
        return "over"

    async with fabric.worker():
        with pytest.raises(ExecutionFailed, match="recorded str") as caught:
            await order.call()
    assert caught.value.category == "nondeterminism"
    assert len(entries) == 2
