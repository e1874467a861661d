"""One file, two processes: fifty signals at once, each recorded once, and one resume."""

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flowfabric.app import open_engine
from flowfabric.config import Settings, StoreUrl
from flowfabric.core.conditions import Count, composite
from flowfabric.core.suspend_outcomes import Issued
from flowfabric.core.suspension_documents import read_signal
from flowfabric.engine import Engine
from flowfabric.operations.attempts import SuspendOrder
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.integration.signaller import deliver, request_to

REPOSITORY = Path(__file__).resolve().parents[2]
EACH = 25
SOON_S = 30.0
ORDER = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("default",))


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    opened = await open_engine(Settings(store=StoreUrl("sqlite", str(tmp_path / "shared.db"))))
    yield opened
    assert await opened.deps.store.backend.verify() == []
    await opened.close()
    await opened.deps.store.backend.close()


async def paused(engine: Engine, wanted: int) -> tuple[str, Issued]:
    await engine.executions.create(Submission(kind="shared"))
    (claimed,) = await engine.claims.claim(ORDER)
    condition = composite(Count(wanted, "DistinctSignals", ("k",)))
    suspended = await engine.suspensions.suspend(
        claimed.proof, SuspendOrder(resume_condition=condition)
    )
    return claimed.execution_id, suspended.details.waitpoints[0]


@asynccontextmanager
async def sender(path: Path, own: str, at: Issued) -> AsyncIterator[asyncio.subprocess.Process]:
    """The other process, ready to send."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.integration.signaller",
        *(str(path), own, at.waitpoint_id, str(EACH)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(SOON_S):
            assert (await process.stdout.readline()).split() == [b"ready"]
        yield process
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def sent_by(process: asyncio.subprocess.Process, at: Issued) -> list[tuple[str, str]]:
    """Let it begin, and read what it was told."""
    # The token goes another way than the arguments, which every user can list.
    async with asyncio.timeout(SOON_S):
        output, _ = await process.communicate(f"{at.waitpoint_token.reveal()}\n".encode())
    lines = [line.split() for line in output.decode().splitlines()]
    return [(signal_id, effect) for signal_id, effect in lines]


@pytest.mark.parametrize("wanted", [2 * EACH, 20])
async def test_signals_from_two_processes_resume_once(
    engine: Engine, tmp_path: Path, wanted: int
) -> None:
    own, at = await paused(engine, wanted)
    requests = [request_to(own, at.waitpoint_id, at.waitpoint_token.reveal()) for _ in range(EACH)]
    async with sender(tmp_path / "shared.db", own, at) as process:
        theirs, *ours = await asyncio.gather(
            sent_by(process, at), *(deliver(engine, request) for request in requests)
        )
    answers = [*theirs, *ours]
    assert len({signal_id for signal_id, _ in answers}) == 2 * EACH
    expected = {"appended_to_waitpoint": wanted - 1, "resume_condition_satisfied": 1}
    if wanted < 2 * EACH:
        expected["target_not_signalable"] = 2 * EACH - wanted
    assert Counter(effect for _, effect in answers) == expected

    seen = await engine.deps.store.read(own, documents=("sig/*",))
    assert seen is not None
    kept = sorted((read_signal(one) for one in seen.documents.values()), key=lambda one: one.seq)
    assert [one.seq for one in kept] == list(range(1, wanted + 1))
    assert {one.payload for one in kept} == {bytes(range(256))}
    assert (seen.record.state, seen.record.signal_count) == ("waiting", wanted)
    claimed = await engine.claims.claim(ORDER)
    assert [one.execution_id for one in claimed] == [own]
    assert len((await engine.signals.resume_signals(own, 0)).signals) == wanted
