"""What a worker leaves behind: nothing that only the garbage collector could find."""

import gc

from flowfabric import Context, FlowFabric
from flowfabric.worker.attempts import ClaimedAttempt
from flowfabric.worker.session import Session


def _living() -> list[object]:
    return [one for one in gc.get_objects() if issubclass(type(one), ClaimedAttempt | Session)]


async def test_work_that_has_ended_is_gone_without_a_collection() -> None:
    async with FlowFabric("memory://") as fabric:

        @fabric.task()
        async def plain(n: int) -> int:
            return n

        @fabric.task()
        async def told(ctx: Context, n: int) -> int:
            await ctx.stream("here")
            return n

        gc.collect()
        others = len(_living())
        gc.disable()
        try:
            async with fabric.worker():
                for n in range(20):
                    assert await plain.call(n) == n
                    assert await told.call(n) == n
                held = len(_living())
        finally:
            gc.enable()
    assert held - others <= 2
