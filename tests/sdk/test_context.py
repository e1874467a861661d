"""The context: what is recorded is not done again, and waiting holds no worker."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowfabric import (
    BudgetExceeded,
    ConfigError,
    Context,
    ExecutionFailed,
    FlowFabric,
    SyncContext,
)
from flowfabric.errors import NotFound
from flowfabric.operations.signals import Approval
from tests.sdk.meddling import long_leased, meddling
from tests.sdk.until import reaches


@dataclass
class Parcel:
    weight: int


# ---- steps


async def test_a_recorded_step_is_not_run_again(fabric: FlowFabric) -> None:
    done: list[str] = []

    @fabric.task(retries=2, backoff="1ms")
    async def pack(ctx: Context, n: int) -> list[Parcel]:
        async def weigh(n: int) -> Parcel:
            done.append(f"weigh {n}")
            return Parcel(n)

        parcels = [await ctx.step("weigh", weigh, each) for each in range(n)]
        assert all(isinstance(one, Parcel) for one in parcels)
        if ctx.info.attempt_index < 2:
            done.append("fall")
            raise ValueError("once more")
        return parcels

    async with fabric.worker():
        assert await pack.call(2) == [Parcel(0), Parcel(1)]
    assert done == ["weigh 0", "weigh 1", "fall", "fall"]


async def test_steps_run_side_by_side(fabric: FlowFabric) -> None:
    done: list[int] = []

    @fabric.task(retries=1, backoff="1ms")
    async def fan(ctx: Context) -> list[int]:
        def double(n: int) -> int:
            done.append(n)
            return n * 2

        found = await asyncio.gather(*(ctx.step("double", double, n) for n in range(5)))
        if not ctx.info.attempt_index:
            raise ValueError("again")
        return found

    async with fabric.worker():
        assert await fan.call() == [0, 2, 4, 6, 8]
    assert sorted(done) == [0, 1, 2, 3, 4]


async def test_another_call_at_a_recorded_place_is_told_with_both_names(
    fabric: FlowFabric,
) -> None:
    @fabric.task(retries=3, backoff="1ms", on_nondeterminism="fail")
    async def fickle(ctx: Context) -> None:
        await ctx.step("pay", abs, -1 - ctx.info.attempt_index)
        raise ValueError("again")

    async with fabric.worker():
        with pytest.raises(ExecutionFailed) as caught:
            await fickle.call()
    assert caught.value.category == "nondeterminism"
    assert "abs(-1)" in caught.value.reason
    assert "abs(-2)" in caught.value.reason


async def test_a_step_is_tried_again_and_timed(fabric: FlowFabric) -> None:
    tries: list[int] = []

    @fabric.task()
    async def stubborn(ctx: Context) -> str:
        async def flaky() -> str:
            tries.append(1)
            if len(tries) < 3:
                raise OSError("not yet")
            return "there"

        async def slow() -> None:
            await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            await ctx.step("slow", slow, timeout="5ms")
        return await ctx.step("flaky", flaky, retries=2)

    async with fabric.worker():
        assert await stubborn.call() == "there"
    assert len(tries) == 3


async def test_waiting_inside_a_step_is_refused(fabric: FlowFabric) -> None:
    @fabric.task(retries=2)
    async def muddled(ctx: Context) -> None:
        await ctx.step("nap", lambda: ctx.sleep("1s"))

    async with fabric.worker():
        run = await muddled.submit()
        with pytest.raises(ExecutionFailed, match="a step cannot wait"):
            await run.result(timeout="20s")


async def test_a_pause_waits_for_the_steps_beside_it(fabric: FlowFabric) -> None:
    done: list[str] = []

    @fabric.task()
    async def both(ctx: Context) -> str:
        async def slow() -> str:
            await asyncio.sleep(0.02)
            done.append("slow")
            return "kept"

        value, _ = await asyncio.gather(ctx.step("slow", slow), ctx.sleep("30ms"))
        return value

    @fabric.task()
    async def grouped(ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.sleep("1ms"))

    async with fabric.worker():
        assert await both.call() == "kept"
        await grouped.call()
    assert done == ["slow"]


# ---- time


async def test_sleeping_delays_the_execution_and_goes_on_in_place(fabric: FlowFabric) -> None:
    entered: list[int] = []

    @fabric.task()
    async def nap(ctx: Context) -> int:
        entered.append(ctx.info.attempt_index)
        await ctx.sleep("1s")
        await ctx.sleep_until(datetime.now(UTC) - timedelta(days=1))
        return ctx.info.attempt_index

    async with fabric.worker():
        assert await nap.call() == 0
    assert entered == [0, 0]


# ---- signals


async def test_a_signal_is_waited_for_without_a_worker(fabric: FlowFabric) -> None:
    @fabric.task()
    async def wait(ctx: Context) -> int:
        signal = await ctx.wait_for("go", as_=Parcel)
        assert signal is not None
        return signal.payload.weight

    async with fabric.worker(concurrency=1):
        runs = [await wait.submit() for _ in range(3)]
        for run in runs:
            await reaches(fabric, run, "suspended")
        for number, run in enumerate(runs):
            await run.signal("go", Parcel(number))
        assert [await run.result(timeout="20s") for run in runs] == [0, 1, 2]


async def test_several_signals_and_a_timeout(fabric: FlowFabric) -> None:
    @fabric.task()
    async def wait(ctx: Context) -> list[str] | None:
        both = await ctx.wait_for("a", "b")
        assert both is not None
        assert await ctx.wait_for("never", timeout="20ms") is None
        return [f"{one.name} {one.payload}" for one in both]

    async with fabric.worker():
        run = await wait.submit()
        await reaches(fabric, run, "suspended")
        await run.signal("b", 2)
        await run.signal("a", 1)
        assert await run.result(timeout="20s") == ["a 1", "b 2"]


async def test_a_waitpoint_is_handed_out_before_it_is_waited_on(fabric: FlowFabric) -> None:
    handed: list[tuple[str, str, str]] = []
    tokens: list[str] = []

    @fabric.task()
    async def wait(ctx: Context) -> object:
        waitpoint = await ctx.waitpoint(expires="1h")
        tokens.append(waitpoint.token.reveal())
        if not handed:
            own = (ctx.info.execution_id, waitpoint.waitpoint_id, waitpoint.token.reveal())
            handed.append(own)
            await fabric.signal(*own, "done", {"n": 1})
        signal = await ctx.wait_for("done", on=waitpoint)
        again = await ctx.wait_for("more")
        assert signal is not None
        assert again is not None
        return [signal.payload, again.payload]

    async with fabric.worker():
        run = await wait.submit()
        await reaches(fabric, run, "suspended")
        await run.signal("more", "x")
        assert await run.result(timeout="20s") == [{"n": 1}, "x"]
    assert len(set(tokens)) == 1
    journal = await fabric.admin.journal(run.id)
    digest = tokens[0].partition(":")[2].encode()
    assert not any(digest in one.outcome for one in journal.items)


@pytest.mark.parametrize(
    ("decisions", "approved", "by"),
    [
        (["approved ann", "approved ann", "approved bob"], True, ["ann", "bob"]),
        (["approved ann", "rejected bob"], False, ["bob"]),
    ],
)
async def test_people_decide(
    fabric: FlowFabric, decisions: list[str], approved: bool, by: list[str]
) -> None:
    @fabric.task()
    async def deploy(ctx: Context) -> tuple[bool, list[str], str]:
        decision = await ctx.approve("ship it?", approvers=2)
        return decision.approved, list(decision.by), decision.comment

    async with fabric.worker():
        run = await deploy.submit()
        await reaches(fabric, run, "suspended")
        port = await fabric.submitter()
        (waitpoint,) = await port.waitpoints(run.id)
        for text in decisions:
            name, who = text.split()
            await port.approve(
                run.id,
                waitpoint.waitpoint_id,
                Approval(signal_name=name, source_identity=who, payload=b'{"comment":"ok"}'),
            )
        assert await run.result(timeout="20s") == (approved, by, "ok")


async def test_the_resume_of_an_operator_is_no_approval(fabric: FlowFabric) -> None:
    @fabric.task()
    async def deploy(ctx: Context) -> tuple[bool, bool]:
        decision = await ctx.approve("ship it?", approvers=2)
        return decision.approved, decision.overridden

    async with fabric.worker():
        run = await deploy.submit()
        await reaches(fabric, run, "suspended")
        await fabric.admin.resume(run.id)
        assert await run.result(timeout="20s") == (False, True)


async def test_an_approval_that_nobody_gives_times_out(fabric: FlowFabric) -> None:
    @fabric.task()
    async def deploy(ctx: Context) -> bool:
        decision = await ctx.approve("ship it?", timeout="10ms")
        assert decision.timed_out
        return bool(decision)

    async with fabric.worker():
        assert await deploy.call() is False


# ---- children


async def test_children_are_called_one_by_one_and_together(fabric: FlowFabric) -> None:
    entered: list[int] = []

    @fabric.task()
    async def square(n: int) -> int:
        return n * n

    @fabric.task()
    async def fall() -> None:
        raise ValueError("no child is perfect")

    @fabric.task()
    async def total(ctx: Context, n: int) -> int:
        entered.append(n)
        first = await ctx.call(square, 10)
        rest = await ctx.gather(*(ctx.call(square, each) for each in range(n)))
        child = await ctx.submit(square, 3)
        with pytest.raises(ExecutionFailed, match="perfect"):
            await ctx.call(fall)
        return first + sum(rest) + await child.result()

    # One place to run is enough: a parent that waits holds none.
    async with fabric.worker(concurrency=1):
        assert await total.call(4) == 100 + 14 + 9


# ---- output


async def test_frames_come_in_order_once_although_the_handler_is_entered_again(
    fabric: FlowFabric,
) -> None:
    @fabric.task()
    async def talk(ctx: Context) -> None:
        await ctx.stream("begin")

        async def speak() -> None:
            for n in range(3):
                await ctx.stream({"n": n}, frame_type="token")

        await ctx.step("speak", speak)
        await ctx.summary({"words": 3})
        await ctx.wait_for("go")
        await ctx.stream(b"end")

    async with fabric.worker():
        run = await talk.submit()
        await reaches(fabric, run, "suspended")
        assert await run.summary() == {"words": 3}
        await run.signal("go")
        frames = [frame async for frame in run.stream(visibility="all")]
    texts = [frame.text for frame in frames if frame.mode == "durable"]
    assert texts == ["begin", '{"n":0}', '{"n":1}', '{"n":2}', "end"]


async def test_a_stream_follows_retries(fabric: FlowFabric) -> None:
    @fabric.task(retries=1, backoff="1ms")
    async def talk(ctx: Context) -> None:
        await ctx.stream(f"try {ctx.info.attempt_index}")
        if not ctx.info.attempt_index:
            raise ValueError("again")

    async with fabric.worker():
        run = await talk.submit()
        frames = [(frame.attempt_index, frame.text) async for frame in run.stream()]
    assert frames == [(0, "try 0"), (1, "try 1")]


# ---- budgets


async def test_spending_counts_once_and_stops_at_the_limit(fabric: FlowFabric) -> None:
    budget = await fabric.budget("llm", hard={"tokens": 100}, soft={"tokens": 50})

    @fabric.task(budget="llm")
    async def think(ctx: Context) -> list[str]:
        outcomes: list[str] = [
            (await ctx.spend(tokens=40)).outcome,
            (await ctx.spend(tokens=20)).outcome,
        ]
        await ctx.wait_for("go")
        async with ctx.reserve(tokens=30) as hold:
            await hold.commit(tokens=10)
        with pytest.raises(BudgetExceeded):
            await ctx.spend(tokens=31)
        return outcomes

    @fabric.task(budget="llm")
    async def greedy(ctx: Context) -> None:
        await ctx.spend(tokens=90)

    async with fabric.worker():
        run = await think.submit()
        await reaches(fabric, run, "suspended")
        await run.signal("go")
        assert await run.result(timeout="20s") == ["ok", "soft_breach"]
        with pytest.raises(ExecutionFailed) as caught:
            await greedy.call()
    assert caught.value.category == "budget_exceeded"
    status = await budget.status()
    assert (status.usage, status.reserved.get("tokens", 0)) == ({"tokens": 70}, 0)


# ---- threads


async def test_a_blocking_function_has_a_context_that_blocks(fabric: FlowFabric) -> None:
    done: list[int] = []

    @fabric.task()
    def wait(ctx: SyncContext, n: int) -> int:
        def once() -> int:
            done.append(n)
            return n

        value: int = ctx.step("once", once)
        signal = ctx.wait_for("go")
        return value + int(signal.payload)

    async with fabric.worker():
        run = await wait.submit(1)
        await reaches(fabric, run, "suspended")
        await run.signal("go", 41)
        assert await run.result(timeout="20s") == 42
    assert done == [1]


async def test_progress_is_told_while_the_handler_runs(fabric: FlowFabric) -> None:
    may_tell, may_end, is_told = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def report(found: Any, args: tuple[Any, ...]) -> Any:
        answer = await found(*args)
        is_told.set()
        return answer

    reporting = await meddling(await long_leased(fabric), "report_progress", report)

    @reporting.task
    async def crawl(ctx: Context) -> str:
        with pytest.raises(ConfigError, match=r"pct: expected 0\.\.100, got -1"):
            ctx.progress(-1)
        await may_tell.wait()
        ctx.progress(40, "nearly half")
        await may_end.wait()
        return ctx.info.kind

    async with reporting.worker():
        run = await crawl.submit()
        await reaches(fabric, run, "active")
        info = await run.info()
        assert (info.progress_pct, info.progress_message) == (None, "")
        may_tell.set()
        await asyncio.wait_for(is_told.wait(), 20)
        info = await run.info()
        assert (info.progress_pct, info.progress_message) == (40, "nearly half")
        may_end.set()
        assert await run.result(timeout="20s") == "crawl"


async def test_output_for_those_who_look_now_and_a_log_that_knows_its_work(
    fabric: FlowFabric, caplog: pytest.LogCaptureFixture
) -> None:
    @fabric.task
    async def talk(ctx: Context) -> None:
        ctx.log.warning("beginning")
        await ctx.stream({"step": 1})
        await ctx.stream("just now", frame_type="live", mode="best_effort", ttl="1m")
        assert ctx.task.execution_kind == "talk"
        with pytest.raises(NotFound, match="no input named 'draft'"):
            await ctx.upstream("draft")

    async with fabric.worker():
        run = await talk.submit()
        await run.result(timeout="20s")
    frames = [(frame.frame_type, frame.text, frame.mode) async for frame in run.stream()]
    assert frames[0] == ("event", '{"step":1}', "durable")
    assert ("live", "just now", "best_effort") in frames
    lasting = [frame.text async for frame in run.stream(visibility="exclude_best_effort")]
    assert lasting == ['{"step":1}']
    (told,) = [record for record in caplog.records if record.getMessage() == "beginning"]
    assert told.__dict__["execution_id"] == run.id
