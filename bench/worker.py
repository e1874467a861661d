"""The SDK's worker: submitting in batches, draining no-op tasks, and from submit to result.

With `BENCH_VALKEY_URL` set, a Valkey server is measured beside the stores of this process.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.measure import Measure, measure, median
from bench.report import Options, Ratio, Report
from flowfabric import FlowFabric, Task
from flowfabric.config import Settings
from flowfabric.core.tokens import Secret

_VALKEY = os.environ.get("BENCH_VALKEY_URL", "")
_BATCH = 1_000
_LATENCIES = 200


async def run(options: Options) -> Report:
    measures: list[Measure] = []
    drains: dict[str, list[Measure]] = {scheme: [] for scheme in _schemes()}
    for _ in range(options.rounds):
        for scheme, found in drains.items():
            submitted, drained = await _drain(scheme, options.cycles)
            found.append(drained)
            measures.append(submitted)
    best = {scheme: median(found) for scheme, found in drains.items()}
    latencies = {scheme: await _latency(scheme) for scheme in drains}
    measures = [*measures[-len(drains) :], *best.values(), *latencies.values()]
    ratios = [
        Ratio.at_least(
            "sqlite: no-op tasks drained per second by one process",
            best["sqlite"].per_second,
            1_800,
        ),
        Ratio.at_most("memory: submit to result, median ms", latencies["memory"].median_ms, 2.5),
    ]
    return Report(measures, ratios)


def _schemes() -> list[str]:
    return ["memory", "sqlite", *(["valkey"] if _VALKEY else [])]


class _Counting:
    """A no-op task that knows when the last one has run."""

    def __init__(self, fabric: FlowFabric) -> None:
        self._left = 0
        self._is_done = asyncio.Event()
        self.task: Task[[int], None] = fabric.task(name="noop")(self._noop)

    async def _noop(self, n: int) -> None:
        self._left -= 1
        if self._left == 0:
            self._is_done.set()

    def expect(self, runs: int) -> None:
        self._left = runs
        self._is_done.clear()

    async def done(self) -> None:
        await self._is_done.wait()


async def _drain(scheme: str, cycles: int) -> tuple[Measure, Measure]:
    async with _fabric(scheme) as fabric:
        counting = _Counting(fabric)

        async def submit() -> None:
            await counting.task.submit_many([counting.task.bind(n) for n in range(_BATCH)])

        batches = max(1, cycles // _BATCH)
        submitted = await measure(f"{scheme}: submit, batches of {_BATCH}", submit, 1, batches)
        counting.expect(batches * _BATCH)

        async def drain() -> None:
            async with fabric.worker():
                await counting.done()

        drained = await measure(f"{scheme}: drain no-op tasks", drain, 1, 1)
    return _per_task(submitted, batches * _BATCH), _per_task(drained, batches * _BATCH)


def _per_task(run: Measure, tasks: int) -> Measure:
    """The same run, counted in tasks."""
    share = run.seconds / tasks * 1e3
    return Measure(
        name=run.name,
        callers=run.callers,
        cycles=tasks,
        seconds=run.seconds,
        cpu_seconds=run.cpu_seconds,
        median_ms=share,
        p99_ms=share,
    )


async def _latency(scheme: str) -> Measure:
    async with _fabric(scheme) as fabric:
        task = _Counting(fabric).task

        async def cycle() -> None:
            await task.call(1)

        async with fabric.worker():
            await measure("warm-up", cycle, 1, 20)
            return await measure(f"{scheme}: submit to result", cycle, 1, _LATENCIES)


@asynccontextmanager
async def _fabric(scheme: str) -> AsyncIterator[FlowFabric]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "bench.db"
        url = {"memory": "memory://", "sqlite": f"sqlite:///{path}", "valkey": _VALKEY}[scheme]
        settings = Settings(waitpoint_secret=Secret("5e" * 32))
        async with FlowFabric(url, settings=settings) as fabric:
            yield fabric
