"""A worker is killed, and another one starts on the same host: it goes on at once."""

import signal
from pathlib import Path

import pytest

from tests.chaos.agent_worker import fabric_at
from tests.chaos.frozen_worker import declared
from tests.chaos.homes import HOMES, home
from tests.chaos.processes import check_store, worker_process
from tests.chaos.test_frozen_workers import CLAIMED, hear


@pytest.mark.parametrize("name", HOMES)
async def test_after_a_kill_the_next_worker_waits_for_no_lease(name: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with home(name, tmp_path) as url, fabric_at(url) as fabric:
        declared(fabric, notes, "rescuer")
        runs = [await fabric.submit("paying", {"number": number}) for number in range(CLAIMED)]
        # Its leases would last longer than the results are waited for.
        async with worker_process("tests.chaos.frozen_worker", url, notes) as victim:
            await hear(victim, "frozen")
            victim.kill()
            await victim.wait()
        async with fabric.worker():
            assert [await run.result(timeout="20s") for run in runs] == ["rescuer"] * CLAIMED
        for run in runs:
            assert [one.type for one in await run.attempts()] == ["initial", "reclaim"]
        if not url.startswith("http"):
            await check_store(fabric)


@pytest.mark.parametrize("name", HOMES)
async def test_a_frozen_worker_keeps_its_leases(name: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    async with home(name, tmp_path) as url, fabric_at(url) as fabric:
        declared(fabric, notes, "rescuer")
        run = await fabric.submit("returning", {"number": 0})
        async with worker_process("tests.chaos.frozen_worker", url, notes) as victim:
            await hear(victim, "frozen")
            before = await fabric.admin.describe_execution(run.id)
            victim.send_signal(signal.SIGSTOP)
            async with fabric.worker():
                after = await fabric.admin.describe_execution(run.id)
                assert after.current_lease == before.current_lease
                assert [one.type for one in await run.attempts()] == ["initial"]
            victim.kill()
