"""A server process is killed while workers and callers use it over HTTP: whoever starts it again
finds everything, and everybody goes on."""

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from flowfabric import FlowFabric
from tests.chaos.homes import STORES
from tests.chaos.processes import check_store, worker_process
from tests.chaos.program import COINS, SETTINGS, STEPS, declared
from tests.chaos.test_killed_workers import check_steps
from tests.server.processes import Process, running
from tests.stores import url_of

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "3"))
# How soon everybody goes on once the server is back.
BACK_S = 5.0
ERRANDS = 10

pytestmark = [
    pytest.mark.parametrize("store", STORES),
    pytest.mark.timeout(max(180, 20 * ROUNDS)),
]


@asynccontextmanager
async def served(
    store: str, directory: Path, listen: str = "127.0.0.1:0"
) -> AsyncIterator[Process]:
    variables = {
        "FF_URL": store,
        "FF_SQLITE_PATH": "",
        "FF_LISTEN_ADDR": listen,
        "FF_WAITPOINT_HMAC_SECRET": "5e" * 32,
        "FF_TIMER_SWEEP_INTERVAL_MS": "100",
    }
    async with running(directory, **variables) as server:
        yield server


async def test_a_killed_server_takes_nothing_with_it(store: str, tmp_path: Path) -> None:
    address, notes = url_of(store, tmp_path), tmp_path / "notes"
    notes.touch()
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(served(address, tmp_path))
        url = server.url
        fabric = await stack.enter_async_context(declared(url, notes))
        budget = await fabric.budget("purse", hard={"coins": 10**6})
        runs = [
            await fabric.submit("errand", {"number": number}, budget="purse", retries=9)
            for number in range(ERRANDS)
        ]
        worker = await stack.enter_async_context(worker_process("tests.chaos.program", url, notes))
        assert worker.stdout is not None
        for number in range(ERRANDS, ERRANDS + ROUNDS):
            for _ in range(random.randint(1, 2 * STEPS)):
                assert await worker.stdout.readline()
            server.process.kill()
            await server.ended()
            server = await stack.enter_async_context(
                served(address, tmp_path, url.removeprefix("http://"))
            )
            async with asyncio.timeout(BACK_S):
                runs.append(
                    await fabric.submit("errand", {"number": number}, budget="purse", retries=9)
                )
                await runs[-1].result()
        check_steps(notes, await asyncio.gather(*(run.result(timeout="60s") for run in runs)))
        assert (await budget.status()).usage == {"coins": COINS * len(runs)}
    async with FlowFabric(address, settings=SETTINGS) as fabric:
        await check_store(fabric)
