"""Handlers that do what they should not: each ends as documented and the worker goes on."""

import asyncio
import functools
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

import pytest

from flowfabric import (
    ConfigError,
    Context,
    ExecutionExpired,
    ExecutionFailed,
    FlowFabric,
    Run,
    SyncContext,
)
from flowfabric.worker.handlers import in_thread

P = ParamSpec("P")
R = TypeVar("R")

IGNORED = "ignores its cancellation"


async def failure(run: Run[Any]) -> ExecutionFailed:
    with pytest.raises(ExecutionFailed) as caught:
        await run.result(timeout="20s")
    return caught.value


class Mute(Exception):
    """An exception that cannot even say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    @property
    def category(self) -> str:
        raise RuntimeError("no category")


class Untidy:
    pass


async def test_every_failure_keeps_a_traceback_to_read(fabric: FlowFabric) -> None:
    @fabric.task
    async def raises() -> None:
        raise ValueError("plainly")

    @fabric.task
    async def exits() -> None:
        raise SystemExit("at once")

    @fabric.task
    async def untidy() -> object:
        return {"left": Untidy()}

    @fabric.task
    async def mute() -> None:
        raise Mute

    @fabric.task
    async def tidy() -> int:
        return 1

    async with fabric.worker(concurrency=1):
        for task, line in (
            (raises, 'raise ValueError("plainly")'),
            (exits, 'raise SystemExit("at once")'),
            (untidy, "no codec for Untidy"),
            (mute, "raise Mute"),
        ):
            failed = await failure(await task.submit())
            assert line in failed.traceback
        assert await tidy.call() == 1


async def test_one_that_ends_like_a_generator_or_cancels_itself_has_panicked(
    fabric: FlowFabric,
) -> None:
    @fabric.task
    async def leaves() -> None:
        raise GeneratorExit("as if closed")

    @fabric.task
    async def cancels() -> None:
        raise asyncio.CancelledError

    async with fabric.worker(concurrency=1):
        failed = await failure(await leaves.submit())
        assert (failed.reason, failed.category) == (
            "handler panicked: GeneratorExit: as if closed",
            "handler_panic",
        )
        failed = await failure(await cancels.submit())
        assert failed.reason == "handler panicked: it cancelled itself"
        assert "raise asyncio.CancelledError" in failed.traceback


async def test_a_group_of_exceptions_says_what_is_in_it(fabric: FlowFabric) -> None:
    async def stumble(over: str) -> None:
        raise ValueError(over)

    @fabric.task
    async def crowd() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(stumble("a stone"))

    async with fabric.worker():
        failed = await failure(await crowd.submit())
    assert failed.reason == (
        "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception): ValueError: a stone"
    )
    assert "ValueError: a stone" in failed.traceback


async def test_a_result_of_another_type_than_promised_is_told_by_its_reader(
    fabric: FlowFabric,
) -> None:
    @fabric.task
    async def lies() -> int:
        return "no number"  # type: ignore[return-value]

    async with fabric.worker():
        run = await lies.submit()
        with pytest.raises(
            ValueError, match=r"the result of .*: Expected `int`, got `str`"
        ) as told:
            await run.result(timeout="20s")
    assert run.id in str(told.value)


async def test_an_exception_without_words_fails_by_its_name(fabric: FlowFabric) -> None:
    @fabric.task
    async def mute() -> None:
        raise Mute

    async with fabric.worker():
        failed = await failure(await mute.submit())
    assert (failed.reason, failed.category) == ("Mute", "handler_error")


async def test_a_step_whose_value_cannot_be_kept_is_not_tried_again(fabric: FlowFabric) -> None:
    @fabric.task(retries=3, backoff="1ms")
    async def work(ctx: Context) -> None:
        await ctx.step("untidy", Untidy)

    async with fabric.worker():
        run = await work.submit()
        failed = await failure(run)
        assert "Untidy cannot be encoded" in failed.reason
        assert len(await run.attempts()) == 1


# ---- those that do not stop when they are told


class Ear(logging.Handler):
    """Hears of those that do not stop."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = asyncio.Event()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if IGNORED in record.getMessage():
            self.texts.append(record.getMessage())
            self.heard.set()


@pytest.fixture
def ear() -> Iterator[Ear]:
    logger, ear = logging.getLogger("flowfabric.worker"), Ear()
    logger.addHandler(ear)
    yield ear
    logger.removeHandler(ear)


async def test_one_that_outlives_its_timeout_is_reported_and_its_value_dropped(
    fabric: FlowFabric, ear: Ear
) -> None:
    returned = asyncio.Event()

    @fabric.task(timeout="20ms")
    async def stubborn() -> str:
        for _ in range(2):
            with suppress(asyncio.CancelledError):
                await ear.heard.wait()
        returned.set()
        return "too late"

    @fabric.task
    async def tidy() -> int:
        return 1

    async with fabric.worker(concurrency=1):
        run = await stubborn.submit()
        with pytest.raises(ExecutionExpired, match="attempt_timeout"):
            await run.result(timeout="20s")
        await asyncio.wait_for(returned.wait(), 20)
        assert await tidy.call() == 1
    assert ear.texts == [f"{run.id} ('stubborn') {IGNORED}"]


async def test_a_thread_keeps_its_place_however_often_it_is_cancelled() -> None:
    release = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        running = asyncio.ensure_future(in_thread(threads, release.wait))
        for _ in range(3):
            await asyncio.sleep(0)
            running.cancel()
        await asyncio.sleep(0)
        assert not running.done()
        release.set()
        with pytest.raises(asyncio.CancelledError):
            await running


# ---- those that get in the way of the context


async def test_a_pause_that_is_swallowed_is_kept_nevertheless(fabric: FlowFabric) -> None:
    done: list[str] = []

    @fabric.task
    async def child() -> str:
        return "child"

    @fabric.task
    async def swallow(ctx: Context) -> object:
        results = await asyncio.gather(ctx.sleep("30ms"), ctx.call(child), return_exceptions=True)
        try:
            await ctx.sleep("30ms")
            await ctx.step("after", done.append, "after")
        except:  # noqa: E722
            done.append("swallowed")
        return results

    async with fabric.worker():
        assert await swallow.call() == [None, "child"]
    assert done[-1] == "after"
    assert done.count("after") == 1


def logged(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
    """A decorator as they are often written: itself no coroutine function."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        return function(*args, **kwargs)

    return wrapper


async def test_a_decorated_coroutine_function_is_still_one(fabric: FlowFabric) -> None:
    @fabric.task
    @logged
    async def add(ctx: Context, a: int, b: int) -> int:
        return await ctx.step("add", lambda: a + b)

    async with fabric.worker():
        assert await add.call(1, 2) == 3


async def test_a_call_that_blocks_is_refused_on_the_event_loop(fabric: FlowFabric) -> None:
    contexts: list[SyncContext] = []

    @fabric.task
    def lend(ctx: SyncContext) -> None:
        contexts.append(ctx)

    async with fabric.worker():
        await lend.call()
    with pytest.raises(ConfigError, match="blocks"):
        contexts[0].sleep("1s")
