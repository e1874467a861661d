"""A loop of many rounds keeps its journal, its children and the memory of its worker bounded."""

import asyncio
import gc
from typing import Final

import pytest

from flowfabric import Context
from flowfabric.testing import open_kit

_RETENTION: Final = "1s"
_ROUNDS_A_LOOK: Final = 50
# Which of them are alive at a look differs a little.
_FEW: Final = 20


async def _loop(rounds: int) -> None:
    looked: list[tuple[int, int, int]] = []
    async with open_kit() as kit:
        backend = kit.engine.deps.store.backend

        @kit.task(retention=_RETENTION)
        async def child(n: int) -> int:
            return n + 1

        @kit.task
        async def loop(ctx: Context, n: int) -> int:
            following = await ctx.call(child, n)
            if n % _ROUNDS_A_LOOK == 0:
                await ctx.sleep("10s")
                await backend.purge(10 * _ROUNDS_A_LOOK)
                journal = await kit.admin.journal(ctx.info.execution_id)
                info = await kit.run(ctx.info.execution_id).info()
                looked.append((len(journal.items), len(info.children), _objects()))
            if n < rounds:
                await ctx.restart(following)
            return n

        run = await loop.submit(0)
        while not (await run.info()).completed_at:
            await kit.clock.advance("1m")
        assert await run.result() == rounds
    entries, children, objects = zip(*looked, strict=True)
    assert max(entries) <= 3
    assert max(children) <= _ROUNDS_A_LOOK + 1
    assert max(objects[1:]) <= objects[1] + _FEW


def _objects() -> int:
    """How many objects of workers are alive, and tasks."""
    gc.collect()
    return sum(_is_workers(type(one)) for one in gc.get_objects())


def _is_workers(kind: type) -> bool:
    return str(kind.__module__).startswith("flowfabric.worker") or issubclass(kind, asyncio.Task)


async def test_a_loop_of_some_hundred_rounds_stays_small() -> None:
    await _loop(200)


@pytest.mark.long
@pytest.mark.timeout(10_800)
async def test_a_loop_of_a_hundred_thousand_rounds_stays_small() -> None:
    await _loop(100_000)
