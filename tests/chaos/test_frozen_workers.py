"""A worker is frozen until its leases are gone and others have done its work; then it wakes up."""

import asyncio
import signal
from collections import Counter
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from flowfabric import FlowFabric, Run
from flowfabric.operations.events import CompletionEvent
from tests.chaos.agent_worker import fabric_at
from tests.chaos.frozen_worker import LEASE_S, declared
from tests.chaos.homes import HOMES, home
from tests.chaos.processes import check_store, worker_process

# One runs, one was claimed ahead.
CLAIMED = 2


async def hear(victim: asyncio.subprocess.Process, *words: str) -> str:
    """The next line of the process that has one of the words."""
    assert victim.stdout is not None
    while line := (await victim.stdout.readline()).decode():
        if any(word in line for word in words):
            return line
    raise AssertionError(f"the worker ended before it said {words}")


async def end_leases(fabric: FlowFabric, runs: list[Run[Any]]) -> None:
    for run in runs:
        assert (await fabric.admin.revoke_lease(run.id)).outcome == "revoked"


async def completions(fabric: FlowFabric) -> Counter[str]:
    """How often each execution ended, as the log tells up to the end of one more."""
    last = await fabric.submit("paying", {"number": -1})
    found: Counter[str] = Counter()
    async with fabric.worker(), aclosing(fabric.events(cursor="oldest")) as events:
        async for event in events:
            assert isinstance(event, CompletionEvent)
            if event.execution_id == last.id:
                return found
            found[event.execution_id] += 1
    raise AssertionError


async def thaw(victim: asyncio.subprocess.Process, after_s: int) -> None:
    assert victim.stdin is not None
    victim.stdin.write(b"%d\n" % after_s)
    await victim.stdin.drain()
    victim.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("name", HOMES)
@pytest.mark.parametrize("kind", ["returning", "paying"])
async def test_a_worker_that_was_frozen_changes_nothing_when_it_wakes(
    kind: str, name: str, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    async with home(name, tmp_path) as url, fabric_at(url) as fabric:
        declared(fabric, notes, "rescuer")
        runs = [await fabric.submit(kind, {"number": number}) for number in range(CLAIMED)]
        async with worker_process("tests.chaos.frozen_worker", url, notes) as victim:
            await hear(victim, "frozen")
            victim.send_signal(signal.SIGSTOP)
            await end_leases(fabric, runs)
            async with fabric.worker():
                results = [await run.result(timeout="20s") for run in runs]
            assert results == ["rescuer"] * CLAIMED
            await thaw(victim, after_s=LEASE_S)
            for _ in runs:
                await hear(victim, "was not finished", "the lease is gone")
            # It lives on and takes new work, which here means that it waits for a line again.
            extra = await fabric.submit(kind, {"number": CLAIMED})
            await hear(victim, "frozen")
            await thaw(victim, after_s=0)
            assert await extra.result(timeout="20s") == "victim"
            victim.send_signal(signal.SIGTERM)
            assert await victim.wait() == 0
        assert await completions(fabric) == Counter([run.id for run in (*runs, extra)])
        for run in runs:
            assert await run.result() == "rescuer"
            assert [one.type for one in await run.attempts()] == ["initial", "reclaim"]
        check_notes(notes.read_text().splitlines(), kind)
        if not url.startswith("http"):
            await check_store(fabric)


def check_notes(done: list[str], kind: str) -> None:
    """After its sleep the victim did nothing for leases it had lost: it neither began what it had
    claimed ahead nor paid once more."""
    first, *later = [line for line in done if line.startswith("victim")]
    # Work of the same moment comes in either order.
    assert first in [f"victim began {number}" for number in range(CLAIMED)]
    extra = [f"victim began {CLAIMED}", f"victim paid {CLAIMED}"]
    assert later == extra[: 2 if kind == "paying" else 1]
    for number in range(CLAIMED):
        assert done.count(f"rescuer began {number}") == 1
