"""Waiting for the outside: from suspend over a signal to the next claim, beside raw SQLite."""

import asyncio
import tempfile
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

from bench.cycle import engine_at
from bench.measure import Cycle, Measure, measure, median
from bench.raw_suspension import raw_waits
from bench.report import Options, Ratio, Report
from flowfabric.core.conditions import signal_set
from flowfabric.core.suspend_outcomes import Suspended
from flowfabric.engine import Engine
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.operations.attempts import SuspendOrder
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.moves import SignalRequest, deliver_signal

CALLERS = 64
ONE = ClaimOrder(
    worker_id="bench", worker_instance_id="bench-1", lanes=("default",), wait_ms=10_000
)
ORDER = SuspendOrder(resume_condition=signal_set("go"))


async def run(options: Options) -> Report:
    cycles = options.cycles // 3
    raw, engine = [], []
    for _ in range(options.rounds):
        raw.append(await _raw_run(CALLERS, cycles))
        engine.append(await _engine_run("sqlite", CALLERS, cycles))
    baseline, concurrent = median(raw), median(engine)
    alone = await _engine_run("sqlite", 1, cycles // 5)
    measures = [
        await _engine_run("memory", 1, cycles // 2),
        await _engine_run("memory", CALLERS, cycles),
        await _raw_run(1, cycles // 5),
        alone,
        baseline,
        concurrent,
    ]
    share = concurrent.per_second / baseline.per_second
    ratios = [
        Ratio.at_most("sqlite: suspend, signal, claimed again, median ms", alone.median_ms, 9),
        Ratio.at_least("sqlite, 64 callers: engine / raw statements", share, 0.2),
    ]
    return Report(measures, ratios)


async def _engine_run(scheme: str, callers: int, cycles: int) -> Measure:
    with tempfile.TemporaryDirectory() as directory:
        async with engine_at(scheme, Path(directory)) as engine, waits(engine, callers) as cycle:
            await measure("warm-up", cycle, callers, max(2, cycles // 10))
            return await measure(f"{scheme}: suspend to claimed", cycle, callers, cycles)


async def _raw_run(callers: int, cycles: int) -> Measure:
    with tempfile.TemporaryDirectory() as directory:
        async with raw_waits(Path(directory), callers) as cycle:
            await measure("warm-up", cycle, callers, max(2, cycles // 10))
            return await measure("sqlite: raw suspend to claimed", cycle, callers, cycles)


@asynccontextmanager
async def waits(engine: Engine, executions: int) -> AsyncIterator[Cycle]:
    """Suspend one of several executions while a worker waits, signal it, and be claimed again."""
    await asyncio.gather(
        *(engine.executions.create(Submission(kind="bench")) for _ in range(executions))
    )
    claimed = [(await engine.claims.claim(ONE))[0] for _ in range(executions)]
    held: deque[LeaseProof] = deque(one.proof for one in claimed)

    async def cycle() -> None:
        own = held.popleft()
        suspended = await engine.suspensions.suspend(own, ORDER)
        waiting = asyncio.ensure_future(engine.claims.claim(ONE))
        await deliver_signal(engine, _signal(own.execution_id, suspended))
        (again,) = await waiting
        held.append(again.proof)

    yield cycle


def _signal(execution_id: str, suspended: Suspended) -> SignalRequest:
    primary = suspended.details.waitpoints[0]
    return SignalRequest(
        execution_id=execution_id,
        waitpoint_id=primary.waitpoint_id,
        signal_id=str(uuid4()),
        signal_name="go",
        signal_category="bench",
        source_type="bench",
        source_identity="bench",
        waitpoint_token=primary.waitpoint_token,
        payload=b"x" * 64,
    )
