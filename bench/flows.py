"""Flows: chains, fan-out and fan-in, races, and how long a step of a large flow holds the store.

A flow stands beside as many single executions on the same store, done by the same workers.
"""

import asyncio
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

from bench.cycle import INPUT, RESULT, engine_at
from bench.measure import Cycle, Measure, measure, median
from bench.report import Options, Ratio, Report
from flowfabric.backend.base import Backend
from flowfabric.core.rules.attempts import Failure
from flowfabric.engine import Engine, engine_on
from flowfabric.engine.claims import ClaimOrder
from flowfabric.engine.executions import Submission
from flowfabric.engine.graph_types import (
    GraphEdge,
    GraphGroup,
    GraphNode,
    GraphSubmission,
    GraphSubmitted,
)

SCHEMES = ("memory", "sqlite")
DURABLE = "sqlite"
CALLERS = 64
LENGTH = 10
WIDTH = 998
RACERS = 20
LARGE = 9_998
FIRST_WINS = {"kind": "any_of", "on_satisfied": "cancel_remaining"}


async def run(options: Options) -> Report:
    measures: list[Measure] = []
    ratios: list[Ratio] = []
    for scheme in SCHEMES:
        found, judged = await _on(scheme, options)
        measures += found
        ratios += judged
    steps = [await _steps(DURABLE, what, LARGE) for what in STEPS]
    for one in steps:
        name = one.measure.name
        ratios.append(Ratio.at_most(f"{name}: 95 of 100, ms", one.p95_ms, 20))
        # The file's own upkeep falls into some: a checkpoint, or the log on its way to the disk.
        ratios.append(Ratio.at_most(f"{name}: longest, ms", one.longest_ms, 100))
    measures += [one.measure for one in steps]
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


# ---- graphs


def node(name: str, lane: str) -> GraphNode:
    return GraphNode(name=name, lane=lane, kind="bench", input=INPUT)


def graph(names: Sequence[str], edges: Sequence[tuple[str, str]], lane: str) -> GraphSubmission:
    return GraphSubmission(
        nodes=tuple(node(name, lane) for name in names),
        edges=tuple(GraphEdge(source=source, target=target) for source, target in edges),
    )


def chain(lane: str) -> GraphSubmission:
    names = [f"n{i}" for i in range(LENGTH)]
    return graph(names, list(pairwise(names)), lane)


def fan(width: int, lane: str) -> GraphSubmission:
    middle = [f"m{i}" for i in range(width)]
    edges = [("top", name) for name in middle] + [(name, "end") for name in middle]
    return graph(["top", *middle, "end"], edges, lane)


def race(lane: str) -> GraphSubmission:
    racers = [f"r{i}" for i in range(RACERS)]
    plain = graph([*racers, "end"], [(name, "end") for name in racers], lane)
    return GraphSubmission(
        nodes=plain.nodes, edges=plain.edges, groups=(GraphGroup("end", FIRST_WINS),)
    )


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
            await engine.outcomes.complete(claimed.held, RESULT)

    return _with_a_lane(engine, work)


def singles_of(engine: Engine) -> Cycle:
    """Ten single executions, one after the other."""

    async def work(engine: Engine, lane: str) -> None:
        submission = Submission(kind="bench", input=INPUT, lane=lane)
        for _ in range(LENGTH):
            await engine.executions.create(submission)
            (claimed,) = await engine.claims.claim(_worker(lane))
            await engine.outcomes.complete(claimed.held, RESULT)

    return _with_a_lane(engine, work)


async def _do_all(engine: Engine, lane: str, total: int) -> None:
    done = 0
    while done < total:
        claimed = await engine.claims.claim(_worker(lane, 100))
        await asyncio.gather(*(engine.outcomes.complete(one.held, RESULT) for one in claimed))
        done += len(claimed)


def fan_of(engine: Engine) -> Cycle:
    async def work(engine: Engine, lane: str) -> None:
        await engine.graphs.submit_graph(fan(WIDTH, lane))
        await _do_all(engine, lane, WIDTH + 2)

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
        await engine.outcomes.complete(running[0].held, RESULT)
        (last,) = await engine.claims.claim(_worker(lane))
        await engine.outcomes.complete(last.held, RESULT)

    return _with_a_lane(engine, work)


# ---- steps of a large flow


class Stopwatch:
    """A store that notes how long each call took that changes something."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.times: list[float] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("apply", "apply_flows", "settle"):
            return found

        async def call(*given: Any) -> Any:
            start = time.perf_counter()
            answer = await found(*given)
            self.times.append(time.perf_counter() - start)
            return answer

        return call


async def _release(engine: Engine, flow: GraphSubmitted) -> None:
    """The first member is done, and all behind it may run."""
    (top,) = await engine.claims.claim(_worker("large"))
    await engine.outcomes.complete(top.held, RESULT)


async def _skip(engine: Engine, flow: GraphSubmitted) -> None:
    """The first member fails, and nothing behind it will ever run."""
    (top,) = await engine.claims.claim(_worker("large"))
    await engine.outcomes.fail(top.held, Failure("broken", "permanent"))


async def _join(engine: Engine, flow: GraphSubmitted) -> None:
    """Members in the middle are done one by one, each another success of the last one's group."""
    await _release(engine, flow)
    await engine.settling.drain()
    for _ in range(3):
        for one in await engine.claims.claim(_worker("large", 100)):
            await engine.outcomes.complete(one.held, RESULT)


async def _cancel(engine: Engine, flow: GraphSubmitted) -> None:
    await engine.flow_cancels.cancel_flow(flow.flow_id, "cancel_all", "enough", wait=True)


STEPS = {"release": _release, "skip": _skip, "join": _join, "cancel": _cancel}


class Steps(NamedTuple):
    measure: Measure
    p95_ms: float
    longest_ms: float


async def _steps(scheme: str, what: str, width: int) -> Steps:
    """How long the store is busy with each step in which a flow of very many members changes."""
    with tempfile.TemporaryDirectory() as directory:
        async with engine_at(scheme, Path(directory)) as opened:
            stopwatch = Stopwatch(opened.deps.store.backend)
            engine = engine_on(cast(Backend, stopwatch))
            flow = await engine.graphs.submit_graph(fan(width, "large"))
            # Who submits thousands of members holds them as objects, and clearing them away is not
            # the store's doing.
            gc.collect()
            gc.freeze()
            cpu, start = time.process_time(), time.perf_counter()
            await STEPS[what](engine, flow)
            await engine.close()
            gc.unfreeze()
            times = sorted(stopwatch.times)
            found = Measure(
                name=f"{scheme}: step, {what} {width + 2:,}",
                callers=1,
                cycles=len(times),
                seconds=time.perf_counter() - start,
                cpu_seconds=time.process_time() - cpu,
                median_ms=times[len(times) // 2] * 1e3,
                p99_ms=times[int(len(times) * 0.99)] * 1e3,
            )
            return Steps(found, times[int(len(times) * 0.95)] * 1e3, times[-1] * 1e3)
