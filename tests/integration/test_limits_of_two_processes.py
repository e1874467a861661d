"""One file, two processes: their spending and running is bounded together."""

import asyncio
import os
import sys
from pathlib import Path

from flowfabric.app import open_engine
from flowfabric.config import Settings, StoreUrl
from flowfabric.duties.sweep import TimerSweep
from flowfabric.operations.executions import Submission
from tests.conformance.limiting import new_budget, usage
from tests.integration.spender import run_exclusively, spend

REPOSITORY = Path(__file__).resolve().parents[2]
LIMIT = 150
WORK = 30


async def test_two_processes_never_pass_a_limit_together(tmp_path: Path) -> None:
    path = tmp_path / "shared.db"
    engine = await open_engine(Settings(store=StoreUrl("sqlite", str(path))))
    budget_id = await new_budget(engine, {"t": LIMIT})
    policy = {"concurrency_key": "one at a time"}
    for _ in range(WORK):
        await engine.executions.create(Submission(kind="work", policy=policy))
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.spender",
        str(path),
        budget_id,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        assert await child.stdout.readline() == b"ready\n"
        child.stdin.write(b"go\n")
        spent = await spend(engine, budget_id, "parent")
        done = await run_exclusively(engine, "parent", path.with_suffix(".running"))
        told, _ = await child.communicate()
        assert child.returncode == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.communicate()
    theirs, their_work = (int(word) for word in told.split())
    assert await usage(engine, budget_id) == {"t": spent + theirs}
    assert spent + theirs <= LIMIT
    for _ in range(10):
        # Work whose wake-up was lost with the child waits for its timer.
        if done + their_work < WORK:
            await TimerSweep(engine).visit()
            done += await run_exclusively(engine, "parent", path.with_suffix(".running"))
    assert done + their_work == WORK
    assert await engine.deps.store.backend.verify() == []
    await engine.close()
    await engine.deps.store.backend.close()
