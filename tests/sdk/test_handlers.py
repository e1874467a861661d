"""What becomes of an attempt, however its handler ends; the worker lives on in every case."""

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from flowfabric import (
    Context,
    Data,
    Delay,
    ExecutionFailed,
    Fail,
    FlowFabric,
    Payload,
    PayloadBytes,
    Run,
    Suspend,
    TaskInfo,
    resource,
)
from flowfabric.errors import ExecutionExpired
from tests.sdk.meddling import long_leased
from tests.sdk.until import reaches, signal_by_token


class Database:
    def __init__(self, name: str) -> None:
        self.name = name


class Unregistered:
    pass


async def failure(run: Run[Any]) -> ExecutionFailed:
    with pytest.raises(ExecutionFailed) as caught:
        await run.result(timeout="20s")
    return caught.value


async def test_values_none_and_bytes_complete(fabric: FlowFabric) -> None:
    @fabric.handler("echo")
    async def echo(body: PayloadBytes) -> object:
        return {b"none": None, b"bytes": b"\xff", b"value": [1]}[body]

    async with fabric.worker():
        results = [
            await (await fabric.submit("echo", body)).result(timeout="20s")
            for body in (b"none", b"bytes", b"value")
        ]
    assert results == [None, b"\xff", [1]]


async def test_a_handler_is_given_what_its_parameters_say(fabric: FlowFabric) -> None:
    opened: list[str] = []

    def per_task() -> Iterator[Database]:
        opened.append("open")
        yield Database("mine")
        opened.append("close")

    async def per_process() -> AsyncIterator[list[str]]:
        opened.append("begin")
        yield ["shared"]
        opened.append("end")

    @fabric.handler("legacy")
    async def legacy(
        ctx: Context,
        order: Payload[dict[str, int]],
        raw: PayloadBytes,
        db: Data[Database],
        shared: Data[list],  # type: ignore[type-arg]
        info: TaskInfo,
    ) -> list[object]:
        assert ctx.info == info
        return [order, raw.decode(), db.name, shared, info.kind, dict(info.tags)]

    resources = [Database("other"), resource(per_task, lifetime="task"), resource(per_process)]
    async with fabric.worker(resources=resources):
        for _ in range(2):
            run = await fabric.submit("legacy", {"n": 1}, tags={"app.team": "x"})
            assert await run.result(timeout="20s") == [
                {"n": 1},
                '{"n":1}',
                "mine",
                ["shared"],
                "legacy",
                {"app.team": "x"},
            ]
    assert opened == ["open", "begin", "close", "open", "close", "end"]


async def test_what_is_missing_or_unreadable_has_its_own_category(fabric: FlowFabric) -> None:
    @fabric.handler("needy")
    async def needy(db: Data[Unregistered]) -> None: ...

    @fabric.handler("strict")
    async def strict(order: Payload[dict[str, int]]) -> None: ...

    @fabric.task(retries=3)
    async def typed(n: int) -> None: ...

    async with fabric.worker():
        missing = await failure(await fabric.submit("needy"))
        unreadable = await failure(await fabric.submit("strict", {"n": "one"}))
        mismatch = await failure(await fabric.submit("typed", b'{"n": "one"}', retries=3))
    assert missing.category == "extractor_missing_state"
    assert "Unregistered" in missing.reason
    assert unreadable.category == "extractor_payload_decode"
    assert mismatch.category == "extractor_payload_decode"
    assert "Expected `int`" in mismatch.reason


async def test_an_unreadable_payload_is_not_tried_again(fabric: FlowFabric) -> None:
    @fabric.task()
    async def typed(n: int) -> None: ...

    async with fabric.worker():
        run = await fabric.submit("typed", b'{"n": "one"}', retries=3, backoff="1ms")
        await failure(run)
        assert len(await run.attempts()) == 1


class Told(Exception):
    category = "permanent"
    retryable = False


async def test_exceptions_may_say_what_they_are(fabric: FlowFabric) -> None:
    @fabric.task(retries=3, backoff="1ms")
    async def fall() -> None:
        raise Told("never again")

    async with fabric.worker():
        run = await fall.submit()
        assert (await failure(run)).category == "permanent"
        assert len(await run.attempts()) == 1


async def test_a_handler_may_answer_fail_delay_or_suspend(fabric: FlowFabric) -> None:
    entered: list[str] = []

    @fabric.task()
    async def answer(ctx: Context, how: str) -> object:
        entered.append(how)
        if entered.count(how) > 1:
            return [signal.signal_name for signal in await ctx.signals()]
        match how:
            case "fail":
                return Fail("as I said", "permanent", retryable=False)
            case "delay":
                return Delay("1ms")
            case _:
                return Suspend(names=("go",))

    async with fabric.worker():
        refused = await failure(await answer.submit("fail"))
        assert (refused.reason, refused.category) == ("as I said", "permanent")
        assert await answer.call("delay") == []
        run = await answer.submit("suspend")
        await reaches(fabric, run, "suspended")
        await signal_by_token(fabric, run, "go")
        assert await run.result(timeout="20s") == ["go"]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, BaseException])
async def test_what_is_no_ordinary_exception_is_a_panic(
    fabric: FlowFabric, kind: type[BaseException]
) -> None:
    @fabric.task()
    async def die() -> None:
        raise kind("gone")

    @fabric.task()
    async def live() -> int:
        return 1

    async with fabric.worker():
        refused = await failure(await die.submit())
        assert refused.category == "handler_panic"
        assert refused.reason == f"handler panicked: {kind.__name__}: gone"
        assert await live.call() == 1


async def test_a_handler_that_cancels_itself_has_panicked(fabric: FlowFabric) -> None:
    @fabric.task()
    async def die() -> None:
        raise asyncio.CancelledError

    async with fabric.worker():
        assert (await failure(await die.submit())).category == "handler_panic"


async def test_a_result_that_cannot_be_written_fails_readably(fabric: FlowFabric) -> None:
    @fabric.task(retries=2, backoff="1ms")
    async def odd() -> object:
        return object()

    @fabric.task(retries=2, backoff="1ms")
    async def huge() -> bytes:
        return bytes(2 * 1024 * 1024)

    async with fabric.worker():
        assert "object cannot be encoded" in (await failure(await odd.submit())).reason
        assert "cannot be stored" in (await failure(await huge.submit())).reason


async def test_a_reason_too_long_or_odd_is_cut_and_stored(fabric: FlowFabric) -> None:
    @fabric.task()
    async def fall() -> None:
        raise ValueError("\0\udc80" + "ä" * 10_000)

    async with fabric.worker():
        assert (await failure(await fall.submit())).reason.endswith("ä…")


@pytest.mark.parametrize(("retry_on", "attempts"), [([], 1), (["timeout"], 2)])
async def test_a_handler_that_hangs_is_ended_by_its_timeout(
    fabric: FlowFabric, retry_on: list[str], attempts: int
) -> None:
    ended: list[str] = []

    @fabric.task(timeout="20ms", retries=1, backoff="1ms", retry_on=retry_on)
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")

    async with fabric.worker():
        run = await hang.submit()
        with pytest.raises(ExecutionExpired, match="attempt_timeout"):
            await run.result(timeout="20s")
        assert len(await run.attempts()) == attempts
    assert len(ended) == attempts


async def test_a_handler_that_blocks_the_loop_loses_its_lease_and_nothing_else(
    fabric: FlowFabric,
) -> None:
    entered: list[int] = []

    @fabric.task()
    async def block(ctx: Context) -> int:
        entered.append(ctx.info.attempt_index)
        if len(entered) == 1:
            time.sleep(1.3)
        return ctx.info.attempt_index

    async with fabric.worker(lease="1s"):
        assert await block.call() == entered[-1]


async def test_a_lost_lease_cancels_the_handler_and_nothing_is_reported(
    fabric: FlowFabric,
) -> None:
    began, lost = asyncio.Event(), asyncio.Event()
    renewing = await long_leased(fabric)

    @renewing.task()
    async def work(ctx: Context) -> int:
        if ctx.info.attempt_index:
            return ctx.info.attempt_index
        began.set()
        try:
            await ctx.lease_lost.wait()
            await asyncio.Event().wait()
        finally:
            assert not ctx.lease_healthy
            lost.set()
        return -1

    async with renewing.worker(lease="1s"):
        run = await work.submit()
        await asyncio.wait_for(began.wait(), 20)
        await fabric.admin.revoke_lease(run.id)
        assert await run.result(timeout="20s") == 1
        await asyncio.wait_for(lost.wait(), 20)


async def test_no_call_of_a_context_succeeds_after_the_lease_was_lost(
    fabric: FlowFabric,
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    done: list[str] = []

    @fabric.task()
    async def work(ctx: Context) -> int:
        if not ctx.info.attempt_index:
            began.set()
            await go_on.wait()
            await ctx.step("late", lambda: None)
            done.append("recorded without a lease")
        return ctx.info.attempt_index

    async with fabric.worker():
        run = await work.submit()
        await asyncio.wait_for(began.wait(), 20)
        await fabric.admin.revoke_lease(run.id)
        go_on.set()
        assert await run.result(timeout="20s") == 1
    assert done == []


async def test_middleware_wraps_handlers_outermost_first(fabric: FlowFabric) -> None:
    heard: list[str] = []

    def layer(name: str) -> Callable[[TaskInfo, Callable[[], Awaitable[Any]]], Awaitable[Any]]:
        async def wrap(info: TaskInfo, go_on: Callable[[], Awaitable[Any]]) -> Any:
            heard.append(f"{name} {info.kind}")
            return await go_on()

        return wrap

    @fabric.task()
    async def work() -> int:
        heard.append("work")
        return 1

    async with fabric.worker(middleware=[layer("outer"), layer("inner")]):
        assert await work.call() == 1
    assert heard == ["outer work", "inner work", "work"]


# ---- drain


async def test_drain_lets_running_work_end_and_hands_back_the_rest(fabric: FlowFabric) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @fabric.task()
    async def work(ctx: Context, n: int) -> int:
        if n == 0:
            began.set()
            await go_on.wait()
        return n

    worker = fabric.worker(concurrency=1, prefetch=2, lease="60s")
    await worker.start()
    runs = [await work.submit(n) for n in range(3)]
    await asyncio.wait_for(began.wait(), 20)
    # What is claimed while the claim is given up comes back only with the end of its lease.
    for run in runs[1:]:
        await reaches(fabric, run, "active")
    stopping = asyncio.ensure_future(worker.stop())
    for run in runs[1:]:
        await reaches(fabric, run, "waiting")
    assert not stopping.done()
    go_on.set()
    await stopping
    assert await runs[0].result(timeout="20s") == 0
    async with fabric.worker():
        assert [await run.result(timeout="20s") for run in runs] == [0, 1, 2]


async def test_drain_cancels_what_takes_too_long_and_spends_no_retry(
    fabric: FlowFabric,
) -> None:
    began = asyncio.Event()
    entered: list[tuple[int, str]] = []

    @fabric.task()
    async def work(ctx: Context) -> int:
        entered.append((ctx.info.attempt_index, ctx.info.attempt_id))
        if len(entered) == 1:
            began.set()
            await asyncio.Event().wait()
        return ctx.info.retry_count

    async with fabric.worker(drain="1ms", lease="60s"):
        run = await work.submit()
        await asyncio.wait_for(began.wait(), 20)
    assert await run.state() == "waiting"
    async with fabric.worker():
        assert await run.result(timeout="20s") == 0
    assert entered[0] == entered[1]


async def test_leaving_by_an_exception_hands_work_back_at_once(fabric: FlowFabric) -> None:
    has_begun = asyncio.Event()

    @fabric.task
    async def hold() -> None:
        has_begun.set()
        await asyncio.Event().wait()

    async def leave() -> None:
        async with asyncio.timeout(15), fabric.worker(drain="1h"):
            await has_begun.wait()
            raise ZeroDivisionError

    run = await hold.submit()
    with pytest.raises(ZeroDivisionError):
        await leave()
    assert await run.state() == "waiting"
    assert [one.type for one in await run.attempts()] == ["initial"]


async def test_one_that_ignores_its_cancellation_is_reported_and_handed_back(
    fabric: FlowFabric, caplog: pytest.LogCaptureFixture
) -> None:
    began, release = threading.Event(), threading.Event()

    @fabric.task()
    def stubborn() -> int:
        began.set()
        release.wait(20)
        return 1

    try:
        with caplog.at_level(logging.WARNING):
            async with fabric.worker(drain="1ms", lease="60s"):
                run = await stubborn.submit()
                await asyncio.to_thread(began.wait, 20)
        assert "ignores its cancellation" in caplog.text
        assert await run.state() == "waiting"
    finally:
        release.set()
    async with fabric.worker():
        assert await run.result(timeout="20s") == 1
