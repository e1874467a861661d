"""The SDK's worker: submitting in batches, draining no-op tasks, and from submit to result."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from bench.measure import Measure, measure, median
from bench.raw_valkey import valkey_server
from bench.report import Options, Ratio, Report
from flowfabric import FlowFabric, Task
from flowfabric.config import Settings
from flowfabric.core.tokens import Secret

_BATCH = 1_000
_LATENCIES = 200


async def run(options: Options) -> Report:
    urls = ("memory://", "sqlite:///{directory}/bench.db")
    found = {_scheme(url): await _measures(url, options) for url in urls}
    ratios = [
        Ratio.at_least(
            "sqlite: no-op tasks drained per second by one process",
            found["sqlite"].drained.per_second,
            1_800,
        ),
        Ratio.at_most(
            "memory: submit to result, median ms", found["memory"].latency.median_ms, 2.5
        ),
    ]
    return Report([one for each in found.values() for one in each.all], ratios)


async def run_on_valkey(options: Options) -> Report:
    with valkey_server() as server:
        found = await _measures(f"valkey://127.0.0.1:{server.port}", options)
    ratios = [
        Ratio.at_least(
            "valkey: tasks submitted per second, in batches", found.submitted.per_second, 10_000
        ),
        Ratio.at_least(
            "valkey: no-op tasks drained per second by one process",
            found.drained.per_second,
            8_000,
        ),
        Ratio.at_most("valkey: submit to result, median ms", found.latency.median_ms, 2.5),
    ]
    return Report(found.all, ratios)


class _Found(msgspec.Struct, frozen=True):
    submitted: Measure
    drained: Measure
    latency: Measure

    @property
    def all(self) -> list[Measure]:
        return [self.submitted, self.drained, self.latency]


async def _measures(url: str, options: Options) -> _Found:
    runs = [await _drain(url, options.cycles) for _ in range(options.rounds)]
    submitted, drained = (median(list(found)) for found in zip(*runs, strict=True))
    return _Found(submitted, drained, await _latency(url))


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


async def _drain(url: str, cycles: int) -> tuple[Measure, Measure]:
    async with _fabric(url) as fabric:
        counting = _Counting(fabric)

        async def submit() -> None:
            await counting.task.submit_many([counting.task.bind(n) for n in range(_BATCH)])

        batches = max(1, cycles // _BATCH)
        submitted = await measure(
            f"{_scheme(url)}: submit, batches of {_BATCH}", submit, 1, batches
        )
        counting.expect(batches * _BATCH)

        async def drain() -> None:
            async with fabric.worker():
                await counting.done()

        drained = await measure(f"{_scheme(url)}: drain no-op tasks", drain, 1, 1)
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


async def _latency(url: str) -> Measure:
    async with _fabric(url) as fabric:
        task = _Counting(fabric).task

        async def cycle() -> None:
            await task.call(1)

        async with fabric.worker():
            await measure("warm-up", cycle, 1, 20)
            return await measure(f"{_scheme(url)}: submit to result", cycle, 1, _LATENCIES)


@asynccontextmanager
async def _fabric(url: str) -> AsyncIterator[FlowFabric]:
    settings = Settings(waitpoint_secret=Secret("5e" * 32))
    with tempfile.TemporaryDirectory() as directory:
        async with FlowFabric(url.format(directory=directory), settings=settings) as fabric:
            yield fabric


def _scheme(url: str) -> str:
    return url.partition(":")[0]
