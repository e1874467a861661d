"""A worker that dies between two calls: the next one goes on where it stood."""

from typing import Any

import msgspec
import pytest

from flowfabric import Context, FlowFabric
from flowfabric.errors import TransportFault
from flowfabric.fabric.connecting import Connection
from tests.sdk.until import reaches


class Dying:
    """From the n-th call of one method on, nothing gets through any more."""

    def __init__(self, inner: Any, method: str, at: int) -> None:
        self._inner = inner
        self._method = method
        self._left = at
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if name == self._method:
                self._left -= 1
            if self._left <= 0:
                self.is_dead = True
                raise TransportFault("dead")
            return await found(*args, **kwargs)

        return call


async def dying(fabric: FlowFabric, method: str, at: int) -> tuple[FlowFabric, Dying]:
    connection = await fabric.open()
    port = Dying(connection.worker, method, at)

    async def leave_open() -> None:
        """The store is closed by whoever opened it."""

    async def connect() -> Connection:
        return msgspec.structs.replace(connection, worker=port, close=leave_open)

    return FlowFabric.over(connect, namespace=fabric.namespace), port


@pytest.mark.parametrize(
    ("method", "at"), [("record", 1), ("record", 2), ("record", 3), ("suspend", 1), ("finish", 1)]
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
    victim = doomed.worker(lease="1s", drain="1ms")
    await victim.start()
    run = await task.submit()
    heir = fabric.worker(lease="1s")
    try:
        if (method, at) in (("record", 1), ("suspend", 1)):
            # It dies before it suspends, so that somebody else has to.
            await heir.start()
        await reaches(fabric, run, "suspended")
        await run.signal("go", "went")
        await heir.start()
        assert await run.result(timeout="30s") == [1, "went", 2]
    finally:
        await victim.stop()
        await heir.stop()
    assert port.is_dead or at > 1
