"""A worker that dies between two calls: the next one goes on where it stood."""

import asyncio
from typing import Any

import msgspec
import pytest

from flowfabric import Context, FlowFabric
from flowfabric.errors import TransportFault
from flowfabric.fabric.connection import Connection
from flowfabric.operations.signals import Approval
from tests.sdk.until import reaches


class Dying:
    """With the n-th call of one method nothing gets through any more, nor does an answer."""

    def __init__(self, inner: Any, method: str, at: int) -> None:
        self._inner = inner
        self._method = method
        self._left = at
        self._under_way: set[asyncio.Future[Any]] = set()
        self.has_died = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if name == self._method:
                self._left -= 1
            if self._left <= 0:
                await self._die()
            one = asyncio.ensure_future(found(*args, **kwargs))
            self._under_way.add(one)
            await asyncio.wait([one])
            self._under_way.discard(one)
            if one.cancelled():
                raise TransportFault("dead")
            return one.result()

        return call

    async def _die(self) -> None:
        for one in self._under_way:
            one.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)
        self.has_died.set()
        raise TransportFault("dead")


async def dying(fabric: FlowFabric, method: str, at: int) -> tuple[FlowFabric, Dying]:
    connection = await fabric.open()
    port = Dying(connection.worker, method, at)

    async def leave_open() -> None:
        """The store is closed by whoever opened it."""

    async def connect() -> Connection:
        return msgspec.structs.replace(connection, worker=port, close=leave_open)

    return FlowFabric.over(connect, namespace=fabric.namespace), port


@pytest.mark.parametrize(
    ("method", "at"),
    [
        ("append_journal", 1),
        ("append_journal", 2),
        ("append_journal", 3),
        ("suspend", 1),
        ("finish", 1),
    ],
)
async def test_a_signal_survives_a_crash_before_it_is_recorded(
    fabric: FlowFabric, method: str, at: int
) -> None:
    doomed, port = await dying(fabric, method, at)

    async def work(ctx: Context) -> list[object]:
        first = await ctx.step("first", lambda: 1)
        signal = await ctx.wait_for("go", timeout="1h")
        assert signal is not None
        second = await ctx.step("second", lambda: 2)
        return [first, signal.payload, second]

    fabric.task(name="work")(work)
    task = doomed.task(name="work")(work)
    # No lease ends by itself, so that it is the victim that dies, and once.
    victim = doomed.worker(lease="60s", drain="1ms")
    await victim.start()
    run = await task.submit()
    heir = fabric.worker(lease="60s")

    async def inherit() -> None:
        await asyncio.wait_for(port.has_died.wait(), 20)
        await fabric.admin.revoke_lease(run.id)
        await heir.start()

    try:
        if has_suspended := (method, at) not in (("append_journal", 1), ("suspend", 1)):
            await reaches(fabric, run, "suspended")
            await run.signal("go", "went")
        await inherit()
        if not has_suspended:
            await reaches(fabric, run, "suspended")
            await run.signal("go", "went")
        assert await run.result(timeout="30s") == [1, "went", 2]
    finally:
        await victim.stop()
        await heir.stop()


async def test_an_answer_that_is_journaled_with_the_end_survives_a_crash(
    fabric: FlowFabric,
) -> None:
    """The finish is lost, and with it the answer that it would have journaled."""
    doomed, dead = await dying(fabric, "finish", 1)

    async def work(ctx: Context) -> bool:
        return bool(await ctx.approve("go on?"))

    fabric.task(name="work")(work)
    task = doomed.task(name="work")(work)
    victim = doomed.worker(lease="60s", drain="1ms")
    await victim.start()
    try:
        run = await task.submit()
        await reaches(fabric, run, "suspended")
        port = await fabric.submitter()
        (waitpoint,) = await port.waitpoints(run.id)
        yes = Approval(signal_name="approved", source_identity="ann")
        await port.approve(run.id, waitpoint.waitpoint_id, yes)
        await asyncio.wait_for(dead.has_died.wait(), 20)
        await fabric.admin.revoke_lease(run.id)
        async with fabric.worker(lease="60s"):
            assert await run.result(timeout="30s") is True
    finally:
        await victim.stop()
    names = [one.name for one in (await fabric.admin.journal(run.id)).items]
    assert names == ["ff.approve"]


@pytest.mark.parametrize(
    ("method", "at"),
    [("append_journal", 1), ("append_journal", 2), ("read_mailbox", 1), ("finish", 1)],
)
async def test_mail_is_taken_once_across_a_crash(fabric: FlowFabric, method: str, at: int) -> None:
    doomed, port = await dying(fabric, method, at)

    async def collect(ctx: Context) -> list[object]:
        found = [await ctx.wait_for("n", timeout="1h") for _ in range(3)]
        return [one and one.payload for one in (*found, await ctx.receive("n"))]

    fabric.task(name="collect")(collect)
    task = doomed.task(name="collect")(collect)
    run = await task.submit()
    for number in range(3):
        await fabric.run(run.id).signal("n", number)
    victim = doomed.worker(lease="60s", drain="1ms")
    heir = fabric.worker(lease="60s")
    await victim.start()
    try:
        await asyncio.wait_for(port.has_died.wait(), 20)
        await fabric.admin.revoke_lease(run.id)
        await heir.start()
        assert await fabric.run(run.id).result(timeout="30s") == [0, 1, 2, None]
        assert (await fabric.run(run.id).info()).mail_count == 0
    finally:
        await victim.stop()
        await heir.stop()
