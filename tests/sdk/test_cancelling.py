"""A running handler is cancelled within a second, in every home, whoever took its lease."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from flowfabric import Context, ExecutionCancelled, ExecutionFailed, FlowFabric, Run, SyncContext
from flowfabric.errors import FlowFabricError

# Far below the third of a lease after which a renewal would tell.
SOON_S = 5.0


class Running:
    """What a test knows of a handler that runs until it is cancelled."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.has_ended = asyncio.Event()
        self.refusals: list[BaseException] = []

    async def handle(self, ctx: Context) -> None:
        self.has_begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            try:
                await ctx.step("after", int)
            except BaseException as fault:
                self.refusals.append(fault)
            raise
        finally:
            self.has_ended.set()


Take = Callable[[FlowFabric, Run[None]], Awaitable[object]]


async def _cancel(fabric: FlowFabric, run: Run[None]) -> object:
    await run.cancel("enough")
    return None


async def _revoke(fabric: FlowFabric, run: Run[None]) -> object:
    return await fabric.admin.revoke_lease(run.id)


@pytest.mark.parametrize("take", [_cancel, _revoke])
async def test_a_running_handler_is_cancelled_at_once(fabric: FlowFabric, take: Take) -> None:
    running = Running()

    @fabric.task()
    async def long(ctx: Context) -> None:
        await running.handle(ctx)

    async with fabric.worker(lease="60s"):
        run = await long.submit()
        await running.has_begun.wait()
        await take(fabric, run)
        async with asyncio.timeout(SOON_S):
            await running.has_ended.wait()
    # No call of the context succeeds any more.
    (refusal,) = running.refusals
    assert not isinstance(refusal, FlowFabricError | Exception)


async def test_a_child_is_cancelled_with_its_parent(fabric: FlowFabric) -> None:
    running = Running()

    @fabric.task()
    async def child(ctx: Context) -> None:
        await running.handle(ctx)

    @fabric.task()
    async def parent(ctx: Context) -> None:
        await ctx.call(child)

    async with fabric.worker(lease="60s"):
        run = await parent.submit()
        await running.has_begun.wait()
        await run.cancel("enough")
        async with asyncio.timeout(SOON_S):
            await running.has_ended.wait()
        with pytest.raises(ExecutionCancelled):
            await run.result()


async def test_a_child_may_be_left(fabric: FlowFabric) -> None:
    begun = asyncio.Event()

    @fabric.task()
    async def child() -> str:
        begun.set()
        return "done"

    @fabric.task()
    async def parent(ctx: Context) -> str:
        left = await ctx.submit(child.options(delay="1s"), on_parent_end="leave")
        raise ValueError(left.id)

    async with fabric.worker():
        run = await parent.submit()
        with pytest.raises(ExecutionFailed) as failed:
            await run.result()
        execution_id = "{fp:" + str(failed.value).partition("{fp:")[2]
        async with asyncio.timeout(SOON_S):
            await begun.wait()
            assert await fabric.run(execution_id).result() == "done"


async def test_a_handler_that_blocks_sees_it(fabric: FlowFabric) -> None:
    begun, seen = threading.Event(), threading.Event()

    @fabric.task()
    def blocking(ctx: SyncContext) -> None:
        begun.set()
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if ctx.cancelled:
                seen.set()
                return
            time.sleep(0.01)

    async with fabric.worker(lease="60s"):
        run = await blocking.submit()
        await asyncio.to_thread(begun.wait, SOON_S)
        await run.cancel("enough")
        assert await asyncio.to_thread(seen.wait, SOON_S)
        with pytest.raises(ExecutionCancelled):
            await run.result()


async def test_others_of_the_worker_go_on(fabric: FlowFabric) -> None:
    running, release = Running(), asyncio.Event()

    @fabric.task()
    async def long(ctx: Context) -> None:
        await running.handle(ctx)

    @fabric.task()
    async def other() -> str:
        await release.wait()
        return "done"

    async with fabric.worker(lease="60s"):
        kept, run = await other.submit(), await long.submit()
        await running.has_begun.wait()
        await run.cancel("enough")
        async with asyncio.timeout(SOON_S):
            await running.has_ended.wait()
        release.set()
        assert await kept.result() == "done"
