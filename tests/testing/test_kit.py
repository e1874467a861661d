"""The testing kit: time by hand, people who decide, and handlers that die everywhere."""

import asyncio
import time
from itertools import pairwise
from typing import Any, cast

import pytest

from flowfabric import BudgetExceeded, Context, ExecutionFailed, Run
from flowfabric.testing import Kit, VirtualClock, crash_everywhere
from flowfabric.worker.session import Session


async def test_time_passes_only_by_hand(fabric: Kit, clock: VirtualClock) -> None:
    woken: list[int] = []

    @fabric.task
    async def nap(ctx: Context, days: int) -> int:
        # Real time goes by, which is none of the clock's.
        await asyncio.sleep(0.005)
        await ctx.sleep(f"{days}d")
        woken.append(days)
        return clock()

    began = clock()
    runs = [await nap.submit(days) for days in (3, 1, 2, 5)]
    await clock.advance("3d")
    assert woken == [1, 2, 3]
    day = 86_400_000
    assert [await run.result() - began for run in runs[:3]] == [3 * day, day, 2 * day]
    await fabric.assert_state(runs[3], "delayed")


async def test_a_machine_that_stalls_is_not_taken_for_workers_that_are_done(
    fabric: Kit, clock: VirtualClock
) -> None:
    @fabric.task
    async def nap(ctx: Context) -> int:
        asyncio.get_running_loop().call_later(0.05, time.sleep, 0.7)
        await asyncio.sleep(0.1)
        await ctx.sleep("1d")
        return clock()

    run, began = await nap.submit(), clock()
    await clock.advance("1d")
    assert await run.result() == began + 86_400_000


async def test_retries_and_other_lanes(fabric: Kit, clock: VirtualClock) -> None:
    tries: list[int] = []

    @fabric.task(lane="shaky", retries=2, backoff="1h")
    async def shaky() -> None:
        tries.append(clock())
        raise OSError("down")

    run, began = await shaky.submit(), clock()
    await clock.advance("1d")
    assert [at - began for at in tries] == [0, 3_600_000, 7_200_000]
    with pytest.raises(ExecutionFailed):
        await run.result()


async def test_a_year_of_a_schedule_comes_up_day_by_day(fabric: Kit, clock: VirtualClock) -> None:
    fired: list[int] = []

    @fabric.task
    async def report() -> None:
        fired.append(clock())

    await fabric.schedule("daily", report, every="1d")
    await clock.advance("365d")
    assert 364 <= len(fired) <= 366
    assert {later - sooner for sooner, later in pairwise(fired)} == {86_400_000}


async def test_what_nobody_can_run_keeps_nothing_else_from_its_time(
    fabric: Kit, clock: VirtualClock
) -> None:
    @fabric.task(needs=["gpu"])
    async def render() -> None: ...

    @fabric.task
    async def nap(ctx: Context) -> int:
        await ctx.sleep("1d")
        return 1

    await render.submit()
    run = await nap.submit()
    await clock.advance("2d")
    assert await run.result(timeout="1s") == 1


async def test_people_decide_or_time_runs_out(fabric: Kit, clock: VirtualClock) -> None:
    @fabric.task
    async def release(ctx: Context, version: str) -> str:
        decision = await ctx.approve(f"release {version}?", approvers=2, timeout="1d")
        if decision.timed_out:
            return "late"
        return f"{'yes' if decision else 'no'} by {', '.join(decision.by)}"

    first = await release.submit("1")
    await fabric.approve_next(by="ada")
    await fabric.assert_state(first, "suspended")
    await fabric.approve_next(by="bob")
    assert await first.result() == "yes by ada, bob"
    second = await release.submit("2")
    await fabric.reject_next(by="eve", comment="too soon")
    assert await second.result() == "no by eve"
    third = await release.submit("3")
    await clock.advance("2d")
    assert await third.result() == "late"
    with pytest.raises(AssertionError, match="no execution waits"):
        await fabric.approve_next()


async def test_signals_frames_and_budgets(fabric: Kit) -> None:
    @fabric.task(budget="tokens")
    async def answer(ctx: Context) -> str:
        question = await ctx.wait_for("question", as_=str)
        assert question is not None
        await ctx.stream("thinking")
        await ctx.spend(tokens=5)
        return question.payload[::-1]

    await fabric.budget("tokens", hard={"tokens": 100})
    run = await answer.submit()
    await fabric.signal_next("question", "abc")
    assert await run.result() == "cba"
    await fabric.assert_spent("tokens", tokens=5)
    with pytest.raises(AssertionError):
        await fabric.assert_frames(run, ["nothing"])
    await fabric.assert_events(run, ["acquired", "released", "acquired", "released"])
    with pytest.raises(AssertionError, match="expected"):
        await fabric.assert_events(run, [])


async def test_a_durable_handler_may_die_anywhere(fabric: Kit) -> None:
    fetched: list[str] = []

    async def fetch(url: str) -> str:
        fetched.append(url)
        return url.upper()

    @fabric.task
    async def crawl(ctx: Context, url: str) -> str:
        first = await ctx.step("fetch", fetch, url)
        await ctx.sleep("1h")
        return first + await ctx.step("fetch", fetch, first)

    assert await crash_everywhere(fabric, crawl, "a") == "AA"
    # Twice undisturbed, at the beginning and the end, and twice for every place in between.
    assert len(fetched) > 8


async def test_a_durable_handler_may_die_in_any_of_its_turns(fabric: Kit) -> None:
    entered: dict[str, list[str]] = {}

    @fabric.task
    async def child(n: int) -> int:
        return n + 1

    @fabric.task(budget="purse")
    async def journey(ctx: Context) -> list[object]:
        entered.setdefault(ctx.info.execution_id, []).append(ctx.info.attempt_type)
        first = await ctx.step("first", lambda: 1)
        signal = await ctx.wait_for("go", as_=str)
        assert signal is not None
        await ctx.spend(coins=2)
        second = await ctx.call(child, first)
        decision = await ctx.approve("further?")
        await ctx.sleep("1h")
        await ctx.stream("nearly there")
        return [first, signal.payload, second, decision.by, await ctx.step("last", lambda: 3)]

    await fabric.budget("purse", hard={"coins": 10**6})
    fabric.always_answer("go", "went")
    fabric.always_answer("approved", by="ada")
    found = await crash_everywhere(fabric, journey)
    assert found == [1, "went", 2, ["ada"], 3]
    killed_later = [ways for ways in entered.values() if "reclaim" in ways[ways.index("resumed") :]]
    assert len(killed_later) > 10
    await fabric.assert_spent("purse", coins=2 * len(entered))


async def test_a_caught_failure_stays_what_it_was_wherever_the_handler_dies(fabric: Kit) -> None:
    observed: dict[str, list[str]] = {}

    async def pay(order: str) -> str:
        seen = observed.setdefault(order, [])
        seen.append("pay")
        if seen.count("pay") % 2:
            raise ValueError("declined")
        return "paid"

    async def tell(order: str) -> str:
        observed[order].append("tell")
        return observed[order][-1]

    @fabric.task
    async def broken() -> None:
        raise ValueError("broken")

    @fabric.task(budget="purse")
    async def order(ctx: Context) -> list[object]:
        own = ctx.info.execution_id
        try:
            outcome = await ctx.step("pay", pay, own)
        except ValueError as fault:
            outcome = str(fault)
        told = await ctx.step("tell", tell, own)
        refused = []
        try:
            await ctx.call(broken)
        except ExecutionFailed:
            refused.append("child")
        try:
            async with ctx.reserve(coins=100):
                refused.append("nothing")
        except BudgetExceeded:
            refused.append("reservation")
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.step("fails", _fails))
                group.create_task(ctx.step("hangs", asyncio.Event().wait))
        except* ValueError:
            refused.append("group")
        await ctx.sleep("1h")
        return [told, bool(outcome), *refused]

    await fabric.budget("purse", hard={"coins": 10})
    found = await crash_everywhere(fabric, order)
    assert found == ["tell", True, "child", "reservation", "group"]
    assert len(observed) > 15
    for seen in observed.values():
        assert "pay" not in seen[seen.index("tell") :], seen


async def _fails() -> None:
    raise ValueError("fails")


async def test_a_step_that_is_done_again_is_found_out(
    fabric: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    @fabric.task
    async def forgetful(ctx: Context) -> int:
        return await ctx.step("one", lambda: 1) + await ctx.step("two", lambda: 2)

    # As if the journal were not read when a handler is entered again.
    monkeypatch.setattr(Session, "open", _nothing)
    with pytest.raises(AssertionError, match="done again though recorded: one"):
        await crash_everywhere(fabric, forgetful)


async def _nothing(_: Session) -> None: ...


async def test_a_handler_that_remembers_outside_is_found_out(fabric: Kit) -> None:
    entered: list[int] = []

    @fabric.task
    async def count(ctx: Context) -> int:
        entered.append(1)
        await ctx.step("look", len, [])
        return len(entered)

    with pytest.raises(AssertionError, match="killed at place"):
        await crash_everywhere(fabric, count)


async def test_mail_is_taken_once_wherever_the_handler_dies(fabric: Kit) -> None:
    async def send(execution_id: str) -> None:
        for number in range(3):
            await fabric.run(execution_id).signal("n", number, id=f"n{number}")

    @fabric.task
    async def collect(ctx: Context) -> list[object]:
        none = await ctx.receive("n")
        await ctx.step("send", send, ctx.info.execution_id)
        first = await ctx.wait_for("n")
        await ctx.sleep("1h")
        second = await ctx.receive("n")
        third = await ctx.wait_for("n", timeout="1h")
        late = await ctx.wait_for("n", timeout="1h")
        return [one and one.payload for one in (none, first, second, third, late)]

    assert await crash_everywhere(fabric, collect) == [None, 0, 1, 2, None]


async def test_a_restart_happens_once_wherever_the_handler_dies(fabric: Kit) -> None:
    @fabric.task
    async def child(n: int) -> int:
        return n + 1

    @fabric.task(budget="purse")
    async def rounds(ctx: Context, n: int) -> list[object]:
        await ctx.step("work", _told, n)
        found = await ctx.call(child, n)
        await ctx.spend(coins=1)
        if n < 1:
            await ctx.restart(found)
        return [n, found, ctx.patched("changed"), ctx.random() < 1]

    await fabric.budget("purse", hard={"coins": 10**6})
    assert await crash_everywhere(fabric, rounds, 0) == [1, 2, True, True]


async def _told(n: int) -> int:
    return n


async def test_kept_steps_are_not_run_again_wherever_the_handler_dies(fabric: Kit) -> None:
    mended = False

    @fabric.task
    async def fragile(ctx: Context) -> list[int]:
        first = await ctx.step("first", _told, 1)
        await ctx.sleep("1h")
        try:
            await ctx.step("breaks", _breaks, mended)
        except ValueError:
            await ctx.step("tell", _told, 2)
            raise
        return [first, await ctx.step("last", _told, 3)]

    class Continued:
        """It fails of a bug, and goes on with what it has once that is mended."""

        name = "fragile"

        async def submit(self) -> Run[list[int]]:
            nonlocal mended
            mended = False
            run = await fragile.submit()
            while not (await run.info()).completed_at:
                await fabric.clock.advance("1d")
            mended = True
            await run.replay(steps="keep")
            return run

    assert await crash_everywhere(fabric, cast(Any, Continued())) == [1, 3]


async def _breaks(mended: bool) -> None:
    if not mended:
        raise ValueError("a bug")


async def test_a_race_has_one_winner_wherever_the_handler_dies(fabric: Kit) -> None:
    @fabric.task
    async def quick(n: int) -> int:
        return n

    @fabric.task
    async def endless(ctx: Context) -> None:
        await ctx.sleep("200d")

    async def send(execution_id: str) -> None:
        await fabric.run(execution_id).signal("go", 1, id="go")

    @fabric.task
    async def compete(ctx: Context) -> list[object]:
        by_child = await ctx.race(
            slow=ctx.call(endless), done=ctx.call(quick, 3), late=ctx.sleep("1h")
        )
        by_time = await ctx.race(go=ctx.wait_for("go"), late=ctx.sleep("1h"))
        await ctx.step("send", send, ctx.info.execution_id)
        by_signal = await ctx.race(late=ctx.sleep("1h"), go=ctx.wait_for("go", as_=int))
        by_person = await ctx.race(late=ctx.sleep("300d"), said=ctx.approve("well?"))
        after = await ctx.receive("go")
        return [
            by_child,
            by_time,
            by_signal[0],
            (by_person[0], bool(by_person[1])),
            after,
        ]

    fabric.always_answer("approved")
    assert await crash_everywhere(fabric, compete) == [
        ["done", 3],
        ["late", None],
        "go",
        ["said", True],
        None,
    ]
    ended = {"completed": 0, "cancelled": 0}
    async for found in fabric.list():
        if found.execution_kind == "endless":
            ended[found.public_state] += 1
    assert ended["completed"] == 0
    assert ended["cancelled"] > 0


async def test_waits_side_by_side_are_each_over_once_wherever_the_handler_dies(
    fabric: Kit,
) -> None:
    async def send(execution_id: str) -> None:
        for number in range(2):
            await fabric.run(execution_id).signal("n", number, id=f"n{number}")

    @fabric.task
    async def double(n: int) -> int:
        return 2 * n

    @fabric.task
    async def gather(ctx: Context) -> list[object]:
        async with asyncio.TaskGroup() as group:
            signals = [group.create_task(ctx.wait_for("n")) for _ in range(2)]
            group.create_task(ctx.step("send", send, ctx.info.execution_id))
            child = group.create_task(ctx.call(double, 4))
            group.create_task(ctx.sleep("1h"))
        found = [one.result() for one in signals]
        return [*(one and one.payload for one in found), child.result()]

    assert await crash_everywhere(fabric, gather) == [0, 1, 8]
