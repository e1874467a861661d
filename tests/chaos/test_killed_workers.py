"""Workers are killed at random points of a durable handler, and everything comes out right."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from flowfabric import Run
from tests.chaos.homes import STORES
from tests.chaos.processes import check_store, worker_process
from tests.chaos.program import COINS, STEPS, declared
from tests.stores import url_of

pytestmark = pytest.mark.parametrize("store", STORES)


async def kill_again_and_again(url: str, notes: Path, kills: int, chance: random.Random) -> None:
    """Start a worker and kill it amid a step, again and again."""
    for _ in range(kills):
        async with worker_process("tests.chaos.program", url, notes) as victim:
            assert victim.stdout is not None
            for _ in range(chance.randint(1, 4 * STEPS)):
                assert await victim.stdout.readline()


async def survive(url: str, notes: Path, errands: int, kills: int) -> None:
    notes.touch()
    fabric = declared(url, notes)
    async with fabric:
        budget = await fabric.budget("purse", hard={"coins": 10**6})
        runs = [
            await fabric.submit("errand", {"number": n}, budget="purse") for n in range(errands)
        ]
        await kill_again_and_again(url, notes, kills, random.Random(7))
        async with worker_process("tests.chaos.program", url, notes):
            results = await asyncio.gather(*(run.result(timeout="60s") for run in runs))
        check_steps(notes, results)
        assert (await budget.status()).usage == {"coins": COINS * errands}
        await check_frames(runs)
        await check_store(fabric)


def check_steps(notes: Path, results: list[list[str]]) -> None:
    """The value of a step is that of its last execution: once recorded it was never run again."""
    last: dict[tuple[int, int], str] = {}
    for line in notes.read_text().splitlines():
        who, place, own = line.split()
        last[int(who), int(place)] = own
    for number, found in enumerate(results):
        assert found[:STEPS] == [last[number, at] for at in range(STEPS)]
        assert found[STEPS] == f"child {number}"
        assert found[STEPS + 1 :] == [last[number, STEPS + at] for at in range(STEPS)]


async def check_frames(runs: list[Run[Any]]) -> None:
    for run in runs:
        frames = [frame async for frame in run.stream()]
        final = [frame.text for frame in frames if frame.attempt_index == frames[-1].attempt_index]
        assert final == [str(place) for place in range(STEPS)]


@pytest.mark.timeout(180)
async def test_killed_workers_lose_nothing_and_repeat_nothing(store: str, tmp_path: Path) -> None:
    await survive(url_of(store, tmp_path), tmp_path / "notes", errands=30, kills=4)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_many_killed_workers_lose_nothing_and_repeat_nothing(
    store: str, tmp_path: Path
) -> None:
    await survive(url_of(store, tmp_path), tmp_path / "notes", errands=300, kills=60)
