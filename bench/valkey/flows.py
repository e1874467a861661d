"""Chains of ten on Valkey, run by one worker that waits on their lane; and whole large graphs."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from bench.cycle import INPUT, RESULT
from bench.flow_steps import LANE as LARGE_LANE
from bench.flow_steps import LARGE, STEPS
from bench.flows import CALLERS, WIDTH
from bench.graphs import LENGTH, chain, fan
from bench.measure import Cycle, Measure
from bench.report import Options, Ratio, Report
from bench.valkey.baseline import Baselines, Words, empty, in_turn, plain, swiftness
from bench.valkey.rig import SLOW_MS, Rig, rig
from bench.valkey.workers import WAITING, Seen, nobody, worker
from flowfabric.engine import Engine
from flowfabric.engine.attempts.claimed import Claimed

# One submit, and a claim and a finish for each link.
OPERATIONS = 1 + 2 * LENGTH
GRAPHS = 5
GRAPH_MS = 30
(LANE,) = WAITING.lanes


def links(own: str) -> tuple[Words, ...]:
    """As many plain commands as a chain has operations."""
    link = (("HGET", own, "in"), ("HSET", own, "out", RESULT))
    return (("HSET", own, "in", INPUT), *(link * LENGTH))


async def run(options: Options) -> Report:
    chains = max(CALLERS, options.cycles // 10)
    async with rig() as on:
        raw, shared, nothing, engine = await in_turn(
            options.rounds,
            partial(plain(links, CALLERS, chains).run, on),
            partial(plain(links, CALLERS, 2 * chains, shares=True).run, on),
            partial(empty(OPERATIONS, CALLERS, 2 * chains).run, on),
            partial(_chains, on, CALLERS, chains),
        )
        alone = await _chains(on, 1, max(10, chains // 5))
        held_up = await swiftness(on)
        whole = await _graphs(on)
        measures = [
            await plain(links, 1, chains // 2).run(on),
            alone,
            raw,
            shared,
            nothing,
            engine,
            whole,
        ]
        ratios = [
            Ratio.at_most("valkey: a chain of ten, median ms", alone.median_ms, 15),
            Ratio.at_least(f"valkey, {CALLERS} callers: chains per second", engine.per_second, 300),
            *Baselines(raw, shared, nothing).ratios(f"valkey, {CALLERS} callers", engine),
            *held_up,
            *await swiftness(on, GRAPH_MS),
            *[await _longest(on, what) for what in STEPS],
        ]
        return Report(measures, ratios, await on.facts())


async def _chains(on: Rig, callers: int, cycles: int) -> Measure:
    # Under load the worker makes a call while the server is at work on another.
    calls = 1 if callers == 1 else 2
    async with on.engine() as engine, chains_of(on, engine, calls) as one:
        return await on.measured("valkey: chain of ten", one, callers, cycles)


@asynccontextmanager
async def chains_of(on: Rig, engine: Engine, calls: int = 1) -> AsyncIterator[Cycle]:
    """A chain submitted; done when the worker has finished its last link."""
    ends: dict[str, asyncio.Event] = {}
    links_done = Counter[str]()

    def finished(one: Claimed) -> None:
        flow_id = one.record.flow_id
        links_done[flow_id] += 1
        if links_done[flow_id] == LENGTH:
            # The worker may be done before the submitter knows what its flow is called.
            ends.setdefault(flow_id, asyncio.Event()).set()

    async def cycle() -> None:
        flow = await engine.graphs.submit_graph(chain(LANE))
        await ends.setdefault(flow.flow_id, asyncio.Event()).wait()

    async with worker(on, Seen(nobody, finished), calls):
        yield cycle


async def _longest(on: Rig, what: str) -> Ratio:
    """How long one call of a step of a flow of ten thousand members held the server at most."""
    async with on.engine() as engine:
        flow = await engine.graphs.submit_graph(fan(LARGE, LARGE_LANE))
        if (act := STEPS[what]) is not None:
            await on.slow()
            await act(engine, flow)
        longest = max((one.ms for one in await on.slow() if one.is_ours), default=0.0)
    return Ratio.at_most(f"valkey: {what} {LARGE + 2:,}: longest call, ms", longest, SLOW_MS)


async def _graphs(on: Rig) -> Measure:
    """Whole graphs of a thousand members, each stored in one step."""
    async with on.engine() as engine:

        async def submit() -> None:
            await engine.graphs.submit_graph(fan(WIDTH, LANE))

        return await on.measured(f"valkey: graph of {WIDTH + 2:,}, submit", submit, 1, GRAPHS)
