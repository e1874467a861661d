"""kill -9 at any moment: nothing acknowledged is lost, nothing completes twice."""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from flowfabric.backend.types import EventFilter, With
from flowfabric.duties.maintenance import Hints
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.chaos.child import open_store
from tests.chaos.homes import STORES
from tests.chaos.processes import Child, child
from tests.stores import url_of

ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "3"))
COMPLETIONS = EventFilter(families=frozenset({"completion"}))
RESULT = frozenset[With]({"result"})


pytestmark = pytest.mark.parametrize("store", STORES)


async def close(engine: Engine) -> None:
    discrepancies = await engine.deps.store.backend.verify()
    await engine.close()
    await engine.deps.store.backend.close()
    assert discrepancies == []


async def completions(engine: Engine) -> Counter[str]:
    backend = engine.deps.store.backend
    cursor = await backend.cursor("oldest")
    found: Counter[str] = Counter()
    while (page := await backend.events(cursor, COMPLETIONS, 200)).events:
        found.update(event.entry.execution_id for event in page.events)
        cursor = page.cursor
    return found


async def reclaimed(engine: Engine, sweep: TimerSweep) -> list[Claimed]:
    """What an ordinary claim offers once the dead worker's leases have run out."""
    order = ClaimOrder(
        worker_id="chaos", worker_instance_id="rescuer", lanes=("default",), n=10, wait_ms=200
    )
    async with asyncio.timeout(20):
        while True:
            await Hints(engine).visit()
            await sweep.visit()
            if claimed := await engine.claims.claim(order):
                return claimed


async def test_work_of_a_killed_worker_is_finished_by_the_next_claim(
    store: str, tmp_path: Path
) -> None:
    url = url_of(store, tmp_path)
    engine = await open_store(url)
    ids = [(await engine.executions.create(Submission(kind="k"))).execution_id for _ in range(3)]
    async with child("hold", url, "victim") as victim:
        await victim.read_until("held", times=3)
        await victim.kill()
    sweep, rescued = TimerSweep(engine), list[Claimed]()
    while len(rescued) < len(ids):
        rescued += await reclaimed(engine, sweep)
    assert sorted(one.execution_id for one in rescued) == sorted(ids)
    assert {one.record.attempt_type for one in rescued} == {"reclaim"}
    for one in rescued:
        await engine.outcomes.complete(one.proof, b"rescued")
    assert await completions(engine) == Counter(ids)
    await close(engine)


@pytest.mark.parametrize("number", range(ROUNDS))
async def test_nothing_acknowledged_is_lost_when_a_process_dies_in_a_commit(
    store: str, tmp_path: Path, number: int
) -> None:
    url = url_of(store, tmp_path)
    chance = random.Random(number)
    async with child("churn", url, f"victim{number}") as victim:
        await victim.read_until("completed", times=chance.randint(1, 400))
        await victim.kill()
    engine = await open_store(url)
    await assert_kept(engine, victim)
    await close(engine)


async def assert_kept(engine: Engine, victim: Child) -> None:
    created = [words[1] for words in victim.said("created")]
    completed = [words[1] for words in victim.said("completed")]
    assert created
    assert completed
    backend = engine.deps.store.backend
    for start in range(0, len(created), 500):
        found = await backend.read(created[start : start + 500], RESULT)
        assert all(seen is not None for seen in found)
    for start in range(0, len(completed), 500):
        for seen in await backend.read(completed[start : start + 500], RESULT):
            assert seen is not None
            assert seen.record.state == "completed"
            assert seen.result is not None
    counts = await completions(engine)
    assert set(counts.values()) == {1}
    assert set(completed) <= set(counts)


async def test_several_processes_never_complete_one_execution_twice(
    store: str, tmp_path: Path
) -> None:
    url = url_of(store, tmp_path)
    engine = await open_store(url)
    submissions = (engine.executions.create(Submission(kind="k")) for _ in range(300))
    ids = [done.execution_id for done in await asyncio.gather(*submissions)]
    names = ("one", "two", "three")
    async with (
        child("drain", url, names[0]) as one,
        child("drain", url, names[1]) as two,
        child("drain", url, names[2]) as three,
    ):
        workers = (one, two, three)
        assert await asyncio.gather(*(worker.finish() for worker in workers)) == [0, 0, 0]
    claimed = Counter(words[1] for worker in workers for words in worker.said("claimed"))
    assert claimed == Counter(ids)
    assert await completions(engine) == Counter(ids)
    await close(engine)
