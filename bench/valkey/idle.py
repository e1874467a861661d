"""What an engine with its duties costs while nothing happens."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.measure import Measure, idled
from bench.report import Options, Ratio, Report
from bench.valkey.rig import rig
from bench.valkey.workers import WAITING
from flowfabric.app import running
from flowfabric.engine import Engine

WORKERS = 64
MOST = 2.0


async def run(options: Options) -> Report:
    async with rig() as on:
        alone = await on.costed(idled("valkey: idle server alone", options.seconds))
        async with running(on.settings) as engine:
            duties = await on.costed(idled("valkey: idle, with duties", options.seconds))
            async with _waiting(engine):
                name = f"valkey: idle, {WORKERS} workers wait"
                waited = await on.costed(idled(name, options.seconds))
        facts = await on.facts() | {"partitions": str(on.settings.counts.flow)}
    return Report(
        [alone, duties, waited],
        [
            Ratio.at_most("idle: engine, % of a core", _percent(duties.cpu_seconds, duties), MOST),
            Ratio.at_most(
                "idle: server, % of a core", _percent(duties.server_cpu_seconds, duties), MOST
            ),
            Ratio.seen(
                f"idle with {WORKERS} waiting workers: engine, % of a core",
                _percent(waited.cpu_seconds, waited),
            ),
            Ratio.seen(
                f"idle with {WORKERS} waiting workers: server, % of a core",
                _percent(waited.server_cpu_seconds, waited),
            ),
        ],
        facts,
    )


def _percent(spent: float, run: Measure) -> float:
    return 100 * spent / run.seconds


@asynccontextmanager
async def _waiting(engine: Engine) -> AsyncIterator[None]:
    async def wait() -> None:
        while True:
            await engine.claims.claim(WAITING)

    tasks = [asyncio.ensure_future(wait()) for _ in range(WORKERS)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
