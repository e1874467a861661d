"""A failure that a handler caught stays what it was, whatever happens to the handler later."""

import asyncio
from typing import Any

import pytest

from flowfabric import (
    BudgetExceeded,
    Context,
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    FlowFabric,
    NonRetryable,
    StepFailed,
    StepTimeout,
)
from flowfabric.fabric.tasks import Task
from tests.sdk.until import reaches

# Longer than the journal takes, so that the handler leaves and is entered again.
PAUSE = "200ms"


class Declined(Exception):
    def __init__(self, code: int, card: str) -> None:
        super().__init__(f"card {card} declined with {code}")
        self.code = code
        self.card = card


class Busy(Exception):
    category = "busy"


class Calls:
    """What the outside world observed."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def made(self, name: str) -> int:
        self.seen.append(name)
        return self.seen.count(name)


async def ends(fabric: FlowFabric, task: Task[Any, Any], *args: Any) -> Any:
    async with fabric.worker():
        return await (await task.submit(*args)).result(timeout="30s")


async def test_a_caught_failure_is_the_same_after_a_pause(fabric: FlowFabric) -> None:
    calls, caught = Calls(), []

    async def pay() -> str:
        if calls.made("pay") == 1:
            raise Declined(402, "1234")
        return "paid"

    async def tell(text: str) -> None:
        calls.made(f"tell {text}")

    @fabric.task(lane="pay")
    async def order(ctx: Context) -> str:
        try:
            outcome = await ctx.step("pay", pay)
        except Declined as fault:
            caught.append((fault.code, fault.card, str(fault)))
            outcome = "declined"
        await ctx.step("tell", tell, outcome)
        await ctx.sleep(PAUSE)
        return outcome

    assert await ends(fabric, order) == "declined"
    assert calls.seen == ["pay", "tell declined"]
    assert caught == [(402, "1234", "card 1234 declined with 402")] * 2


async def test_a_failure_that_ends_the_attempt_is_tried_again(fabric: FlowFabric) -> None:
    calls = Calls()

    async def flaky() -> str:
        if calls.made("flaky") == 1:
            raise ConnectionError("no route")
        return "there"

    @fabric.task(retries=1, backoff="1ms", lane="again")
    async def work(ctx: Context) -> str:
        return await ctx.step("flaky", flaky)

    assert await ends(fabric, work) == "there"
    assert calls.seen == ["flaky", "flaky"]


async def test_a_recorded_failure_that_is_raised_again_is_final(fabric: FlowFabric) -> None:
    calls = Calls()

    async def pay() -> None:
        calls.made("pay")
        raise ConnectionError("no route")

    async def undo() -> None:
        calls.made("undo")

    @fabric.task(retries=3, backoff="1ms", lane="final")
    async def work(ctx: Context) -> None:
        try:
            await ctx.step("pay", pay)
        except ConnectionError as fault:
            await ctx.step("undo", undo)
            raise RuntimeError("not paid") from fault

    with pytest.raises(ExecutionFailed, match=r"recorded: the handler went on with 'undo'"):
        await ends(fabric, work)
    assert calls.seen == ["pay", "undo"]


async def test_failures_of_a_task_group_are_kept(fabric: FlowFabric) -> None:
    calls, caught = Calls(), []

    async def fails(name: str) -> None:
        calls.made(name)
        raise ValueError(name)

    async def hangs() -> None:
        calls.made("hangs")
        await asyncio.Event().wait()

    @fabric.task(lane="group")
    async def work(ctx: Context) -> str:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.step("hangs", hangs))
                group.create_task(ctx.step("fails", fails, "one"))
        except* ValueError as faults:
            caught.append([str(one) for one in faults.exceptions])
        await ctx.sleep(PAUSE)
        return "over"

    assert await ends(fabric, work) == "over"
    assert calls.seen == ["hangs", "one"]
    assert caught == [["one"], ["one"]]


async def test_a_group_raised_in_a_step_comes_back_as_a_group(fabric: FlowFabric) -> None:
    caught: list[list[str]] = []

    async def fails() -> None:
        raise ExceptionGroup("both", [ValueError("one"), Declined(1, "2")])

    @fabric.task(lane="groups")
    async def work(ctx: Context) -> str:
        try:
            await ctx.step("fails", fails)
        except* (ValueError, Declined) as faults:
            caught.append([repr(one) for one in faults.exceptions])
        await ctx.sleep(PAUSE)
        return "over"

    assert await ends(fabric, work) == "over"
    assert len(caught) == 2
    assert caught[0] == caught[1]


async def test_a_step_that_takes_too_long_is_a_timeout_each_time(fabric: FlowFabric) -> None:
    calls, caught = Calls(), []

    async def slow() -> None:
        calls.made("slow")
        await asyncio.Event().wait()

    @fabric.task(lane="slow")
    async def work(ctx: Context) -> str:
        try:
            await ctx.step("slow", slow, timeout="5ms", retries=1, backoff="1ms")
        except TimeoutError as fault:
            caught.append((type(fault), str(fault)))
        await ctx.sleep(PAUSE)
        return "over"

    assert await ends(fabric, work) == "over"
    assert calls.seen == ["slow", "slow"]
    assert [kind for kind, _ in caught] == [StepTimeout, StepTimeout]
    assert caught[0] == caught[1]


async def test_only_the_named_exceptions_are_tried_again(fabric: FlowFabric) -> None:
    calls = Calls()

    async def fails() -> None:
        raise (ConnectionError if calls.made("fails") == 1 else ValueError)("no")

    @fabric.task(lane="named")
    async def work(ctx: Context) -> None:
        await ctx.step("fails", fails, retries=5, backoff="1ms", retry_on=ConnectionError)

    with pytest.raises(ExecutionFailed, match="no"):
        await ends(fabric, work)
    assert calls.seen == ["fails", "fails"]


async def test_a_failure_that_no_retry_helps_ends_step_and_task(fabric: FlowFabric) -> None:
    calls = Calls()

    async def fails() -> None:
        calls.made("fails")
        raise NonRetryable("wrong account")

    @fabric.task(retries=5, backoff="1ms", lane="none")
    async def work(ctx: Context) -> None:
        await ctx.step("fails", fails, retries=5, backoff="1ms")

    with pytest.raises(ExecutionFailed, match="wrong account"):
        await ends(fabric, work)
    assert calls.seen == ["fails"]


async def test_a_failed_child_fails_the_same_way_each_time(fabric: FlowFabric) -> None:
    caught: list[str] = []

    @fabric.task(lane="child")
    async def child() -> None:
        raise ValueError("child is broken")

    @fabric.task(lane="child")
    async def parent(ctx: Context) -> str:
        try:
            await ctx.call(child)
        except ExecutionFailed as fault:
            caught.append(str(fault))
        await ctx.sleep(PAUSE)
        return "over"

    assert await ends(fabric, parent) == "over"
    assert len(caught) == 2
    assert caught[0] == caught[1]
    assert "child is broken" in caught[0]


async def test_a_refused_reservation_and_spend_stay_refused(fabric: FlowFabric) -> None:
    await fabric.budget("tokens", hard={"tokens": 10})
    caught: list[str] = []

    @fabric.task(lane="spend", budget="tokens")
    async def work(ctx: Context) -> str:
        try:
            async with ctx.reserve(tokens=100):
                pass
        except BudgetExceeded as fault:
            caught.append(f"reserve {fault}")
        try:
            await ctx.spend(tokens=100)
        except BudgetExceeded as fault:
            caught.append(f"spend {fault}")
        await ctx.sleep(PAUSE)
        return "over"

    assert await ends(fabric, work) == "over"
    assert len(caught) == 4
    assert caught[:2] == caught[2:]


async def test_a_class_that_cannot_be_made_again_is_caught_by_its_base(
    fabric: FlowFabric,
) -> None:
    caught: list[tuple[str, str]] = []

    class Local(ValueError):
        def __init__(self, thing: object) -> None:
            super().__init__("the thing is wrong")
            self.thing = thing

    async def fails() -> None:
        raise Local(object())

    @fabric.task(lane="local")
    async def work(ctx: Context) -> str:
        try:
            await ctx.step("fails", fails)
        except ValueError as fault:
            name = fault.type.rpartition(".")[2] if isinstance(fault, StepFailed) else ""
            caught.append((name, str(fault).rpartition(": ")[2]))
        await ctx.sleep(PAUSE)
        return "over"

    assert await ends(fabric, work) == "over"
    assert caught == [("Local", "the thing is wrong")] * 2


async def test_failures_caught_earlier_stay_when_a_later_one_is_tried_again(
    fabric: FlowFabric,
) -> None:
    calls = Calls()

    async def fails(name: str, times: int) -> str:
        if calls.made(name) <= times:
            raise ConnectionError(f"{name} is away")
        return name

    @fabric.task(retries=1, backoff="1ms", lane="stay")
    async def work(ctx: Context) -> str:
        first = "there"
        try:
            await ctx.step("first", fails, "first", 1)
        except ConnectionError as fault:
            first = str(fault)
        second = await ctx.step("second", fails, "second", 1)
        return f"{first}, {second}"

    assert await ends(fabric, work) == "first is away, second"
    assert calls.seen == ["first", "second", "second"]


def _again(fault: Exception) -> None:
    raise fault


def _from(fault: Exception) -> None:
    raise RuntimeError("outer") from fault


def _grouped(fault: Exception) -> None:
    raise ExceptionGroup("all", [ValueError("other"), fault])


@pytest.mark.parametrize("raise_again", [_again, _from, _grouped])
async def test_what_a_handler_raises_after_it_went_on_is_final(
    fabric: FlowFabric, raise_again: Any
) -> None:
    calls = Calls()

    async def pay() -> None:
        calls.made("pay")
        raise ConnectionError("no route")

    @fabric.task(retries=3, backoff="1ms", lane="raise")
    async def work(ctx: Context) -> None:
        try:
            await ctx.step("pay", pay)
        except ConnectionError as fault:
            await ctx.step("undo", calls.made, "undo")
            raise_again(fault)

    with pytest.raises(ExecutionFailed, match=r"recorded: the handler went on with 'undo'"):
        await ends(fabric, work)
    assert calls.seen == ["pay", "undo"]


async def test_a_failure_that_passes_a_step_in_finally_is_final(fabric: FlowFabric) -> None:
    calls = Calls()

    async def pay() -> None:
        calls.made("pay")
        raise ConnectionError("no route")

    @fabric.task(retries=3, backoff="1ms", lane="finally")
    async def work(ctx: Context) -> None:
        try:
            await ctx.step("pay", pay)
        finally:
            await ctx.step("close", calls.made, "close")

    with pytest.raises(ExecutionFailed, match=r"recorded: the handler went on with 'close'"):
        await ends(fabric, work)
    assert calls.seen == ["pay", "close"]


async def test_cancelled_and_expired_children_fail_the_same_way_each_time(
    fabric: FlowFabric,
) -> None:
    caught: list[str] = []

    @fabric.task(lane="nobody", deadline="300ms")
    async def late() -> None: ...

    @fabric.task(lane="nobody")
    async def unwanted() -> None: ...

    @fabric.task(lane="ends")
    async def parent(ctx: Context) -> str:
        child = await ctx.submit(unwanted)
        await ctx.step("cancel", _cancel, fabric, child.id)
        for call in (child.result(), ctx.call(late)):
            try:
                await call
            except (ExecutionCancelled, ExecutionExpired) as fault:
                caught.append(type(fault).__name__)
        await ctx.sleep(PAUSE)
        return "over"

    async with fabric.worker(lanes=["ends"]):
        assert await (await parent.submit()).result(timeout="30s") == "over"
    first = ["ExecutionCancelled", "ExecutionExpired"]
    assert caught[-2:] == first
    assert caught.count("ExecutionExpired") == 2


async def _cancel(fabric: FlowFabric, execution_id: str) -> None:
    await fabric.run(execution_id).cancel("not wanted")


async def test_another_call_at_the_place_of_a_failure_is_told(fabric: FlowFabric) -> None:
    entered: list[int] = []

    async def fails(n: int) -> None:
        raise ValueError(str(n))

    @fabric.task(lane="other", on_nondeterminism="fail")
    async def work(ctx: Context) -> None:
        entered.append(1)
        try:
            await ctx.step("one", fails, len(entered))
        except ValueError:
            await ctx.sleep(PAUSE)

    with pytest.raises(ExecutionFailed, match=r"recorded .*fails\(1\), now .*fails\(2\)") as caught:
        await ends(fabric, work)
    assert caught.value.category == "nondeterminism"


async def test_the_cause_of_what_is_caught_is_the_original(fabric: FlowFabric) -> None:
    raised: list[Exception] = []
    causes: list[object] = []

    async def fails() -> None:
        raised.append(Declined(1, "2"))
        raise raised[0]

    @fabric.task(lane="cause")
    async def work(ctx: Context) -> None:
        try:
            await ctx.step("fails", fails)
        except Declined as fault:
            causes.extend([fault.__cause__, fault is raised[0]])
        await ctx.sleep(PAUSE)

    assert await ends(fabric, work) is None
    assert causes[0] is raised[0]
    assert "raise raised[0]" in str(causes[2])
    assert causes[1::2] == [False, False]


# ---- what a task says about retries


@pytest.mark.parametrize(
    ("retry_on", "fault", "attempts"),
    [
        (ConnectionError, ConnectionResetError("away"), 2),
        (ConnectionError, ValueError("wrong"), 1),
        ([ConnectionError, "busy"], Busy("later"), 2),
        ([ConnectionError, "busy"], ConnectionError("away"), 2),
        ([ConnectionError, "busy"], ValueError("wrong"), 1),
    ],
    ids=str,
)
async def test_a_task_says_which_exceptions_are_tried_again(
    fabric: FlowFabric, retry_on: Any, fault: Exception, attempts: int
) -> None:
    calls = Calls()

    @fabric.task(retries=1, backoff="1ms", retry_on=retry_on, lane="classes")
    async def work() -> None:
        calls.made("work")
        raise fault

    with pytest.raises(ExecutionFailed, match=f": {type(fault).__name__}: {fault}$"):
        await ends(fabric, work)
    assert len(calls.seen) == attempts


# ---- reservations


async def test_a_granted_reservation_is_not_asked_anew(fabric: FlowFabric) -> None:
    budget = await fabric.budget("held", hard={"tokens": 10})

    @fabric.task(lane="held", budget="held")
    async def work(ctx: Context) -> str:
        async with ctx.reserve(tokens=8) as hold:
            signal = await ctx.wait_for("go")
            assert signal is not None
            try:
                await hold.commit(tokens=9)
            except BudgetExceeded:
                await ctx.sleep(PAUSE)
                await hold.commit(tokens=7)
        return "over"

    async with fabric.worker():
        run = await work.submit()
        await reaches(fabric, run, "suspended")
        # Nobody else gets what is held: not even the reservation itself, were it asked for again.
        await fabric.admin.report_usage(budget.id, {"tokens": 2}, "")
        await run.signal("go")
        assert await run.result(timeout="30s") == "over"
    status = await budget.status()
    assert (status.usage, status.reserved.get("tokens", 0)) == ({"tokens": 9}, 0)


async def test_a_reservation_that_ended_is_committed_like_a_spend(fabric: FlowFabric) -> None:
    budget = await fabric.budget("ended", hard={"tokens": 10})
    entered: list[int] = []

    @fabric.task(lane="ended", budget="ended")
    async def work(ctx: Context) -> str:
        entered.append(1)
        async with ctx.reserve(tokens=8, ttl="50ms") as hold:
            await ctx.sleep(PAUSE)
            if len(entered) == 2:
                # Others took what was held: asked anew it would be refused.
                await fabric.admin.report_usage(budget.id, {"tokens": 6}, "others")
            try:
                await hold.commit(tokens=5)
            except BudgetExceeded:
                usage = await hold.commit(tokens=4)
                return usage.outcome
        return "committed"

    assert await ends(fabric, work) == "ok"
    assert (await budget.status()).usage == {"tokens": 10}


async def test_a_failed_attempt_gives_back_what_it_held_and_the_next_one_commits(
    fabric: FlowFabric,
) -> None:
    budget = await fabric.budget("tries", hard={"tokens": 10})
    calls = Calls()

    async def flaky() -> None:
        if calls.made("flaky") == 1:
            raise ConnectionError("away")

    @fabric.task(lane="tries", budget="tries", retries=1, backoff="1ms")
    async def work(ctx: Context) -> None:
        async with ctx.reserve(tokens=8) as hold:
            await ctx.step("flaky", flaky)
            await hold.commit(tokens=6)

    assert await ends(fabric, work) is None
    status = await budget.status()
    assert (status.usage, status.reserved.get("tokens", 0)) == ({"tokens": 6}, 0)
