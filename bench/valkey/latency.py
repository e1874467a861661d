"""How soon a waiting worker starts what is submitted, with nothing else going on."""

import asyncio
import time

from bench.cycle import INPUT
from bench.measure import Measure, sampled
from bench.raw_valkey import raw_ways
from bench.report import Options, Ratio, Report
from bench.valkey.baseline import swiftness
from bench.valkey.rig import Rig, rig
from bench.valkey.workers import Seen, worker
from flowfabric.engine import Engine
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.operations.executions import Submission

# Until everybody waits again.
PAUSE_S = 0.01
SUBMISSION = Submission(kind="bench", lane="bench", input=INPUT, creator="bench")


async def run(options: Options) -> Report:
    samples = max(20, options.cycles // 20)
    async with rig() as on:
        async with raw_ways(on.server) as one:
            raw = await on.measured("valkey: XADD to reader", one, 1, samples)
        async with on.engine() as engine:
            start = await _starts(on, engine, samples)
        ratios = [
            Ratio.at_most("valkey: submit to started, median ms", start.median_ms, 1.5),
            Ratio.seen(
                "valkey: submit to started / XADD to reader", start.median_ms / raw.median_ms
            ),
            *await swiftness(on),
        ]
        return Report([raw, start], ratios, await on.facts())


async def _starts(on: Rig, engine: Engine, samples: int) -> Measure:
    started: asyncio.Queue[float] = asyncio.Queue()
    finished = asyncio.Event()

    def claimed(_: Claimed) -> None:
        started.put_nowait(time.perf_counter())

    async def sample() -> float:
        await finished.wait()
        await asyncio.sleep(PAUSE_S)
        finished.clear()
        submitted = time.perf_counter()
        await engine.executions.create(SUBMISSION)
        return await started.get() - submitted

    finished.set()
    async with worker(on, Seen(claimed, lambda _: finished.set())):
        await sampled("warm-up", sample, max(1, samples // 10))
        return await on.costed(sampled("valkey: submit to started", sample, samples))
