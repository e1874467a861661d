"""Flows: chains, fan-out and fan-in, races, and how long a step of a large flow holds the store.

A flow stands beside as many single executions on the same store, done by the same workers.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

from bench.cycle import INPUT, RESULT, engine_at
from bench.flow_steps import STEPS, steps_of
from bench.graphs import LENGTH, RACERS, chain, fan, race
from bench.measure import Cycle, Measure, measure, median
from bench.report import Options, Ratio, Report
from flowfabric.engine import Engine
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder

SCHEMES = ("memory", "sqlite")
CALLERS = 64
WIDTH = 998


async def run(options: Options) -> Report:
    measures: list[Measure] = []
    ratios: list[Ratio] = []
    for scheme in SCHEMES:
        found, judged = await _on(scheme, options)
        measures += found
        ratios += judged
        for what in STEPS:
            steps = await steps_of(scheme, what)
            measures.append(steps.measure)
            ratios += steps.ratios
    return Report(measures, ratios)


async def _on(scheme: str, options: Options) -> tuple[list[Measure], list[Ratio]]:
    chains = max(CALLERS, options.cycles // 40)
    flows, singles = [], []
    for _ in range(options.rounds):
        singles.append(await _run(scheme, singles_of, CALLERS, chains))
        flows.append(await _run(scheme, chain_of, CALLERS, chains))
    single, flow = median(singles), median(flows)
    alone = await _run(scheme, chain_of, 1, chains // 4)
    spread, fan = await _run(scheme, spread_of, 1, 5), await _run(scheme, fan_of, 1, 5)
    raced = await _run(scheme, race_of, 1, chains // 4)
    ratios = [
        Ratio.at_most(f"{scheme}: a chain of ten, median ms", alone.median_ms, 60),
        Ratio.at_least(
            f"{scheme}, {CALLERS} callers: chains / ten single executions",
            flow.per_second / single.per_second,
            0.3,
        ),
        Ratio.at_least(
            f"{scheme}: fan-out and fan-in of 1,000 / single executions",
            fan.per_second / spread.per_second,
            0.25,
        ),
    ]
    return [alone, single, flow, spread, fan, raced], ratios


async def _run(scheme: str, make: Callable[[Engine], Cycle], callers: int, cycles: int) -> Measure:
    with tempfile.TemporaryDirectory() as directory:
        async with engine_at(scheme, Path(directory)) as engine:
            cycle = make(engine)
            await measure("warm-up", cycle, callers, max(1, cycles // 10))
            name = f"{scheme}: {make.__name__.removesuffix('_of')}"
            return await measure(name, cycle, callers, cycles)


# ---- cycles: every caller has a lane of its own, so that it meets its own work only

_LANES = count()


def _worker(lane: str, n: int = 1) -> ClaimOrder:
    return ClaimOrder(
        worker_id="bench", worker_instance_id="bench-1", lanes=(lane,), n=n, wait_ms=10_000
    )


def _with_a_lane(engine: Engine, work: Callable[[Engine, str], Awaitable[None]]) -> Cycle:
    free: list[str] = []

    async def cycle() -> None:
        lane = free.pop() if free else f"lane-{next(_LANES)}"
        await work(engine, lane)
        free.append(lane)

    return cycle


def chain_of(engine: Engine) -> Cycle:
    """A chain of ten, submitted in one call and run link by link."""

    async def work(engine: Engine, lane: str) -> None:
        await engine.graphs.submit_graph(chain(lane))
        for _ in range(LENGTH):
            (claimed,) = await engine.claims.claim(_worker(lane))
            await engine.outcomes.complete(claimed.proof, RESULT)

    return _with_a_lane(engine, work)


def singles_of(engine: Engine) -> Cycle:
    """Ten single executions, one after the other."""

    async def work(engine: Engine, lane: str) -> None:
        submission = Submission(kind="bench", input=INPUT, lane=lane)
        for _ in range(LENGTH):
            await engine.executions.create(submission)
            (claimed,) = await engine.claims.claim(_worker(lane))
            await engine.outcomes.complete(claimed.proof, RESULT)

    return _with_a_lane(engine, work)


async def _do_all(engine: Engine, lane: str, total: int) -> None:
    done = 0
    while done < total:
        claimed = await engine.claims.claim(_worker(lane, 100))
        await asyncio.gather(*(engine.outcomes.complete(one.proof, RESULT) for one in claimed))
        done += len(claimed)


def fan_of(engine: Engine, width: int = WIDTH) -> Cycle:
    async def work(engine: Engine, lane: str) -> None:
        await engine.graphs.submit_graph(fan(width, lane))
        await _do_all(engine, lane, width + 2)

    return _with_a_lane(engine, work)


def spread_of(engine: Engine) -> Cycle:
    """As many single executions as a fan has members."""

    async def work(engine: Engine, lane: str) -> None:
        submission = Submission(kind="bench", input=INPUT, lane=lane)
        await asyncio.gather(*(engine.executions.create(submission) for _ in range(WIDTH + 2)))
        await _do_all(engine, lane, WIDTH + 2)

    return _with_a_lane(engine, work)


def race_of(engine: Engine) -> Cycle:
    """All racers run, one wins, the others are cancelled in the step that picked it."""

    async def work(engine: Engine, lane: str) -> None:
        await engine.graphs.submit_graph(race(lane))
        running = await engine.claims.claim(_worker(lane, RACERS))
        await engine.outcomes.complete(running[0].proof, RESULT)
        (last,) = await engine.claims.claim(_worker(lane))
        await engine.outcomes.complete(last.proof, RESULT)

    return _with_a_lane(engine, work)
