"""Several services and releases share a lane while their workers are killed: each does its own
work, and none spends a retry of another's."""

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from flowfabric import FlowFabric, Run
from tests.chaos.homes import home
from tests.chaos.processes import worker_process
from tests.chaos.services import KINDS, RELEASES, fabric_at
from tests.rotation import on_stores

HOMES = on_stores(["sqlite"], ["http", "postgres", "valkey", "valkey-cluster"])
pytestmark = pytest.mark.parametrize("name", HOMES)
_MODULE = "tests.chaos.services"
_BATCH = 200
_PATIENCE_S = 5.0


async def submitted(fabric: FlowFabric, each: int) -> dict[str, Run[Any]]:
    """So much work of each kind, mixed, by the result that is wanted."""
    wanted = [(kind, number) for number in range(each) for kind in KINDS]
    found: dict[str, Run[Any]] = {}
    for start in range(0, len(wanted), _BATCH):
        part = wanted[start : start + _BATCH]
        runs = await asyncio.gather(
            *(fabric.submit(kind, {"number": n}, retries=2, backoff="1ms") for kind, n in part)
        )
        found |= {f"{kind} {n}": run for (kind, n), run in zip(part, runs, strict=True)}
    return found


async def kill_again_and_again(url: str, kills: int, chance: random.Random) -> None:
    """Start workers of two releases and kill both amid their work, again and again."""
    for _ in range(kills):
        async with AsyncExitStack() as stack:
            victims = [
                await stack.enter_async_context(worker_process(_MODULE, url, Path(release)))
                for release in chance.sample(sorted(RELEASES), 2)
            ]
            await asyncio.gather(*(_hear(one, chance.randint(1, 9)) for one in victims))


async def _hear(worker: asyncio.subprocess.Process, times: int) -> None:
    """So many lines, unless there is no more work for it."""
    assert worker.stdout is not None
    try:
        async with asyncio.timeout(_PATIENCE_S):
            for _ in range(times):
                assert await worker.stdout.readline()
    except TimeoutError:
        return


async def share(name: str, directory: Path, each: int, kills: int) -> None:
    async with home(name, directory) as url, fabric_at(url) as fabric:
        runs = await submitted(fabric, each)
        await kill_again_and_again(url, kills, random.Random(7))
        async with AsyncExitStack() as stack:
            for release in RELEASES:
                await stack.enter_async_context(worker_process(_MODULE, url, Path(release)))
            for wanted, run in runs.items():
                assert await run.result(timeout="120s") == wanted
        for run in runs.values():
            # Interrupted ones went on elsewhere; none failed.
            assert "ended_failure" not in {one.state for one in await run.attempts()}


@pytest.mark.timeout(180)
async def test_services_and_releases_share_a_lane_while_workers_die(
    name: str, tmp_path: Path
) -> None:
    await share(name, tmp_path, each=15, kills=2)


@pytest.mark.long
@pytest.mark.timeout(1_800)
async def test_a_thousand_executions_of_each_share_a_lane_while_workers_die(
    name: str, tmp_path: Path
) -> None:
    await share(name, tmp_path, each=1_000, kills=40)
