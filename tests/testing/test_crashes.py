"""Programs that are killed at every await and every append, in every home: the outside world
observes what it does when nobody is killed."""

import asyncio
import sys
import types
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flowfabric import BudgetExceeded, Context, ExecutionFailed, StepFailed
from flowfabric.testing import Kit, crash_everywhere
from flowfabric.worker.session import Session
from tests.testing.homes import HOMES, kit_at


@pytest.fixture(params=HOMES)
async def kit(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Kit]:
    async with kit_at(request.param, tmp_path) as opened:
        yield opened


class Declined(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"declined with {code}")
        self.code = code


async def decline(code: int) -> None:
    raise Declined(code)


async def tell(text: str) -> str:
    return text


async def test_a_declined_payment_is_told_once_and_stays_declined(kit: Kit) -> None:
    @kit.task
    async def order(ctx: Context) -> str:
        try:
            await ctx.step("pay", decline, 402)
            outcome = "paid"
        except Declined as fault:
            outcome = f"declined {fault.code}"
        told = await ctx.step("tell", tell, outcome)
        await ctx.sleep("3d")
        return f"{outcome}, told {told}"

    assert await crash_everywhere(kit, order) == "declined 402, told declined 402"


async def test_failures_of_calls_groups_and_time_limits_stay(kit: Kit) -> None:
    @kit.task
    async def broken() -> None:
        raise ValueError("broken")

    async def hang() -> None:
        await asyncio.Event().wait()

    @kit.task
    async def work(ctx: Context) -> list[str]:
        caught: list[str] = []
        try:
            await ctx.call(broken)
        except ExecutionFailed as fault:
            caught.append(fault.reason)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(ctx.step("fails", decline, 1))
                group.create_task(ctx.step("hangs", hang))
        except* Declined as faults:
            caught += [str(one) for one in faults.exceptions]
        try:
            await ctx.step("slow", hang, timeout="2ms")
        except TimeoutError as fault:
            caught.append(str(fault))
        await ctx.step("tell", tell, str(caught))
        await ctx.sleep("1h")
        return caught

    first, *rest = await crash_everywhere(kit, work)
    assert first == "ValueError: broken"
    assert rest[0] == "declined with 1"
    assert rest[1].endswith("hang() took longer than 0.002 s")


async def test_a_class_that_later_processes_lack_is_caught_by_its_base(kit: Kit) -> None:
    """Each entry begins as in a process that has not loaded the module."""

    async def fail_late() -> None:
        module = types.ModuleType("loaded_late")
        module.Late = type("Late", (ValueError,), {"__module__": "loaded_late"})  # type: ignore[attr-defined]
        sys.modules["loaded_late"] = module
        raise module.Late("too late")

    class Local(LookupError):
        def __init__(self, thing: object) -> None:
            super().__init__("local")
            self.thing = thing

    async def fail_locally() -> None:
        raise Local(object())

    @kit.task
    async def work(ctx: Context) -> list[str]:
        sys.modules.pop("loaded_late", None)
        caught: list[str] = []
        try:
            await ctx.step("late", fail_late)
        except ValueError as fault:
            caught.append(fault.message if isinstance(fault, StepFailed) else str(fault))
        try:
            await ctx.step("local", fail_locally)
        except LookupError as fault:
            caught.append(fault.message if isinstance(fault, StepFailed) else str(fault))
        await ctx.step("tell", tell, str(caught))
        await ctx.sleep("1h")
        return caught

    try:
        assert await crash_everywhere(kit, work) == ["too late", "local"]
    finally:
        sys.modules.pop("loaded_late", None)


async def test_budgets_count_once(kit: Kit) -> None:
    await kit.budget("purse", hard={"coins": 1_000_000})
    await kit.budget("empty", hard={"coins": 10})

    @kit.task(budget="purse")
    async def work(ctx: Context) -> list[str]:
        caught: list[str] = []
        await ctx.spend(coins=3)
        async with ctx.reserve(coins=9) as hold:
            await ctx.step("use", tell, "use")
            await hold.commit(coins=4)
        async with ctx.reserve(coins=5):
            await ctx.sleep("1h")
        try:
            async with ctx.reserve("empty", coins=11):
                caught.append("nothing")
        except BudgetExceeded:
            caught.append("reserve")
        try:
            await ctx.spend("empty", coins=11)
        except BudgetExceeded:
            caught.append("spend")
        await ctx.step("tell", tell, str(caught))
        await ctx.sleep("1h")
        return caught

    assert await crash_everywhere(kit, work) == ["reserve", "spend"]


async def test_a_cascade_ends_children_of_children(kit: Kit) -> None:
    @kit.task
    async def leaf(ctx: Context, name: str) -> str:
        await ctx.step("begin", tell, name)
        await ctx.wait_for("never")
        return name

    @kit.task
    async def branch(ctx: Context) -> None:
        await ctx.gather(leaf.bind("a"), leaf.bind("b"))

    @kit.task
    async def quick(n: int) -> int:
        return n

    @kit.task
    async def root(ctx: Context) -> None:
        await ctx.submit(branch)
        await ctx.submit(quick, 1, on_parent_end="leave")
        assert await ctx.call(quick, 2) == 2
        await ctx.sleep("1h")
        try:
            await ctx.step("pay", decline, 402)
        finally:
            await ctx.step("undo", tell, "undo")

    with pytest.raises(ExecutionFailed, match=r"declined with 402 \(recorded: .* 'undo'\)"):
        await crash_everywhere(kit, root)


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[Kit]:
    async with kit_at("memory", tmp_path) as opened:
        yield opened


async def test_a_failure_that_is_forgotten_is_found_out(
    memory: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    @memory.task
    async def order(ctx: Context) -> str:
        try:
            await ctx.step("pay", decline, 402)
        except Declined as fault:
            await ctx.step("tell", tell, str(fault))
        await ctx.sleep("1h")
        return "over"

    monkeypatch.setattr(Session, "raise_recorded", lambda *_: None)
    with pytest.raises(AssertionError, match=r"done again though recorded: pay \(use 1\)"):
        await crash_everywhere(memory, order)


async def test_other_calls_of_children_are_found_out(memory: Kit) -> None:
    entered: list[int] = []

    @memory.task
    async def child(ctx: Context) -> None:
        entered.append(1)
        await ctx.step("tell", tell, str(len(entered) < 3))

    @memory.task
    async def parent(ctx: Context) -> str:
        await ctx.call(child)
        return "over"

    with pytest.raises(AssertionError, match="killed at place"):
        await crash_everywhere(memory, parent)
