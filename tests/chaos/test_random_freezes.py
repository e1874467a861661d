"""Workers are frozen at random while others start beside them: no living worker loses a lease."""

import asyncio
import os
import random
import signal
from collections import Counter
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from flowfabric import FlowFabric, Run
from flowfabric.errors import FlowFabricError
from flowfabric.operations.events import LeaseEvent
from tests.chaos.agent_worker import fabric_at
from tests.chaos.homes import HOMES, home
from tests.chaos.processes import worker_process
from tests.chaos.steady_worker import PLACES, declared
from tests.chaos.test_frozen_workers import hear

# With fifty rounds, ten minutes.
FREEZES = 4 * int(os.environ.get("CHAOS_ROUNDS", "50"))
SHORTEST_S, LONGEST_S = 0.5, 5.0
WORKERS = 2
IN_FLIGHT = 16


async def freeze(processes: list[asyncio.subprocess.Process], chance: random.Random) -> None:
    for _ in range(FREEZES):
        frozen = chance.choice(processes)
        frozen.send_signal(signal.SIGSTOP)
        await asyncio.sleep(chance.uniform(SHORTEST_S, LONGEST_S))
        frozen.send_signal(signal.SIGCONT)
        await asyncio.sleep(chance.uniform(0, SHORTEST_S))


async def work(fabric: FlowFabric, is_over: asyncio.Event) -> list[Run[Any]]:
    """Keep so much work under way. A process that is frozen within a transaction of a file keeps
    the others out of it for a while."""
    runs: list[Run[Any]] = []
    while not is_over.is_set():
        try:
            run = await fabric.submit("steady")
            runs.append(run)
            assert await run.result(timeout="60s") == sum(range(PLACES))
        except FlowFabricError as fault:
            if not fault.retryable:
                raise
    return runs


async def start_neighbours(fabric: FlowFabric, is_over: asyncio.Event) -> None:
    """A worker that starts looks for neighbours that are gone."""
    while not is_over.is_set():
        async with fabric.worker(concurrency=1):
            await asyncio.sleep(0.5)


async def lease_events(fabric: FlowFabric, last: str) -> Counter[str]:
    """How often leases began and ended in each way, up to the first of the last execution."""
    found: Counter[str] = Counter()
    async with aclosing(fabric.events({"lease"}, cursor="oldest")) as events:
        async for event in events:
            assert isinstance(event, LeaseEvent)
            if event.execution_id == last:
                return found
            found[event.kind] += 1
    raise AssertionError


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", HOMES)
async def test_a_frozen_worker_keeps_its_leases_until_they_end(name: str, tmp_path: Path) -> None:
    chance, is_over = random.Random(name), asyncio.Event()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(home(name, tmp_path))
        fabric = declared(await stack.enter_async_context(fabric_at(url)))
        started = [
            await stack.enter_async_context(
                worker_process("tests.chaos.steady_worker", url, tmp_path)
            )
            for _ in range(WORKERS)
        ]
        for process in started:
            await hear(process, "ready")
        async with asyncio.TaskGroup() as group:
            working = [group.create_task(work(fabric, is_over)) for _ in range(IN_FLIGHT)]
            group.create_task(start_neighbours(fabric, is_over))
            await freeze(started, chance)
            is_over.set()
        runs = [run for task in working for run in task.result()]
        last = await fabric.submit("steady")
        assert await last.result(timeout="60s") == sum(range(PLACES))
        assert len(runs) >= IN_FLIGHT
        found = await lease_events(fabric, last.id)
        # A worker that is frozen again and again may renew too late, and work may be given to a
        # neighbour that has just stopped: these leases run out, and nobody ends one before that.
        assert not found["revoked"]
        assert found["reclaimed"] <= found["expired"]
