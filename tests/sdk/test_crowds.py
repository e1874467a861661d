"""Many at once: what one reader is given, so are a hundred, whatever a server lets in together."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from flowfabric import Context, ExecutionFailed, Run
from tests.sdk.backends import EVERY, EVERYWHERE

CROWD = 150


async def _frames(run: Run[Any]) -> list[str]:
    return [frame.text async for frame in run.stream()]


@pytest.mark.parametrize("home", EVERYWHERE)
async def test_a_crowd_of_failures_all_keep_their_tracebacks(home: str, tmp_path: Path) -> None:
    async with EVERY[home](tmp_path) as fabric:

        @fabric.task
        async def stumble(n: int) -> None:
            raise ValueError(f"over {n}")

        runs = await stumble.submit_many([stumble.bind(n) for n in range(CROWD)])
        async with fabric.worker():
            ends = await asyncio.gather(
                *(run.result(timeout="30s") for run in runs if isinstance(run, Run)),
                return_exceptions=True,
            )
        assert [type(end) for end in ends] == [ExecutionFailed] * CROWD
        for n, end in enumerate(ends):
            assert isinstance(end, ExecutionFailed)
            assert f"ValueError: over {n}" in end.traceback


@pytest.mark.parametrize("home", EVERYWHERE)
async def test_a_crowd_of_readers_all_see_the_whole_stream(home: str, tmp_path: Path) -> None:
    async with EVERY[home](tmp_path) as fabric:
        has_readers = asyncio.Event()

        @fabric.task
        async def talk(ctx: Context) -> None:
            await ctx.stream("first")
            await has_readers.wait()
            await ctx.stream("last")

        async with fabric.worker():
            run = await talk.submit()
            assert (await anext(run.stream())).text == "first"
            readers = asyncio.gather(*(_frames(run) for _ in range(CROWD)))
            has_readers.set()
            assert await readers == [["first", "last"]] * CROWD
