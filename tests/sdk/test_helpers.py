"""The clock, ids and chance of a handler are the same each time; logs know whose they are."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowfabric import (
    Context,
    ExecutionFailed,
    FlowFabric,
    SyncContext,
    TaskInfo,
    TaskLogFilter,
)
from flowfabric.telemetry.logs import JsonLines

PAUSE = "60ms"
TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


async def test_clock_ids_and_chance_are_the_same_in_every_entry(fabric: FlowFabric) -> None:
    drawn: list[list[Any]] = []

    @fabric.task(retries=1, backoff=0)
    async def draw(ctx: Context) -> list[str]:
        mine = [ctx.now(), ctx.uuid(), ctx.uuid(), ctx.random(), ctx.random()]
        drawn.append(mine)
        await ctx.sleep(PAUSE)
        if not ctx.info.attempt_index:
            raise ValueError("again")
        return [str(one) for one in mine]

    async with fabric.worker():
        assert len(set(await draw.call())) == 5
    first = drawn[0]
    assert drawn == [first] * 3
    now, one, other, chance, _ = first
    assert now.tzinfo is UTC
    assert abs(now - datetime.now(UTC)) < timedelta(minutes=1)
    assert one.version == other.version == 4
    assert 0 <= chance < 1


async def test_helpers_are_written_together_with_the_next_effect(fabric: FlowFabric) -> None:
    @fabric.task
    async def draw(ctx: Context) -> None:
        for _ in range(5):
            ctx.random()
        await ctx.step("use", abs, -1)

    async with fabric.worker():
        run = await draw.submit()
        await run.result(timeout="20s")
    reads = await fabric.admin.journal(run.id)
    assert [one.name for one in reads.items] == ["ff.random"] * 5 + ["use"]


async def test_a_value_that_nothing_followed_is_the_same_in_a_retry(fabric: FlowFabric) -> None:
    drawn: list[float] = []

    @fabric.task(retries=1, backoff=0)
    async def draw(ctx: Context) -> None:
        drawn.append(ctx.random())
        if not ctx.info.attempt_index:
            raise ValueError("again")

    async with fabric.worker():
        await draw.call()
    assert len(drawn) == 2
    assert len(set(drawn)) == 1


async def test_a_blocking_handler_has_the_same_helpers(fabric: FlowFabric) -> None:
    @fabric.task
    def draw(ctx: SyncContext) -> bool:
        first = ctx.uuid()
        return bool(first != ctx.uuid() and ctx.now().tzinfo is UTC and ctx.random() < 1)

    async with fabric.worker():
        assert await draw.call() is True


async def test_a_step_does_not_ask_for_recorded_values(fabric: FlowFabric) -> None:
    @fabric.task
    async def draw(ctx: Context) -> None:
        await ctx.step("draw", ctx.random)

    async with fabric.worker():
        with pytest.raises(ExecutionFailed, match="random: a step runs once; ask outside of it"):
            await draw.call()


async def test_the_log_of_a_task_says_each_thing_once(
    fabric: FlowFabric, caplog: pytest.LogCaptureFixture
) -> None:
    @fabric.task
    async def talk(ctx: Context) -> None:
        async def work() -> None:
            ctx.log.warning("in the step")

        ctx.log.warning("before")
        await ctx.step("work", work)
        ctx.log.warning("between")
        await ctx.sleep(PAUSE)
        ctx.log.warning("after", extra={"parcel": 7})

    async with fabric.worker():
        run = await talk.submit()
        await run.result(timeout="20s")
    told = [one for one in caplog.records if one.name == "flowfabric.task"]
    assert [one.getMessage() for one in told] == ["before", "in the step", "between", "after"]
    last = told[-1].__dict__
    assert (last["execution_id"], last["kind"], last["parcel"]) == (run.id, "talk", 7)


async def test_every_logger_within_a_task_carries_its_ids(fabric: FlowFabric) -> None:
    lines: list[dict[str, Any]] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonLines().format(record)))

    collector, logger = Collector(), logging.getLogger("shop.orders")
    collector.addFilter(TaskLogFilter())
    logger.addHandler(collector)
    try:

        @fabric.task
        async def talk(ctx: Context) -> None:
            logger.warning("in the handler")
            await ctx.step("thread", logger.warning, "in a thread")

        @fabric.task
        def block(ctx: SyncContext) -> None:
            logger.warning("blocking")

        logger.warning("outside")
        async with fabric.worker():
            runs = [await talk.submit(), await block.submit()]
            for run in runs:
                await run.result(timeout="20s")
    finally:
        logger.removeHandler(collector)
    outside, *inside = lines
    assert "execution_id" not in outside
    ids = {
        one["message"]: (one["execution_id"], one["kind"], one["attempt_index"]) for one in inside
    }
    assert ids == {
        "in the handler": (runs[0].id, "talk", 0),
        "in a thread": (runs[0].id, "talk", 0),
        "blocking": (runs[1].id, "block", 0),
    }


async def test_variables_of_middleware_reach_steps_and_threads_and_nobody_else(
    fabric: FlowFabric,
) -> None:
    async def tenancy(info: TaskInfo, go_on: Callable[[], Awaitable[Any]]) -> Any:
        if info.tags:
            TENANT.set(info.tags["tenant"])
        return await go_on()

    @fabric.task
    async def look(ctx: Context) -> list[str]:
        async def waits() -> str:
            await asyncio.sleep(0)
            return TENANT.get()

        return [TENANT.get(), await ctx.step("waits", waits), await ctx.step("blocks", TENANT.get)]

    @fabric.task
    def block(ctx: SyncContext) -> list[str]:
        return [TENANT.get(), ctx.step("blocks", TENANT.get)]

    # One slot: the attempt that ends begins the next one.
    async with fabric.worker(middleware=[tenancy], concurrency=1):
        runs = [
            await look.options(tags={"tenant": "acme"}).submit(),
            await block.options(tags={"tenant": "zeta"}).submit(),
            await look.submit(),
        ]
        found = [await run.result(timeout="20s") for run in runs]
    assert found == [["acme"] * 3, ["zeta"] * 2, ["nobody"] * 3]
