"""Create + claim + complete on Postgres, beside raw statements and beside the memory engine."""

import asyncio
import sys
import tempfile
from pathlib import Path
from statistics import median as middle
from typing import Final

from bench.cycle import cycle_of, engine_at
from bench.measure import Measure, measure, median
from bench.postgres.raw import raw_run, set_up_raw
from bench.postgres.rig import CALLERS, engine_on, measured, postgres_server
from bench.report import Options, Ratio, Report
from flowfabric.engine import Engine
from tests.conformance.limiting import flood
from tests.postgres_server import PostgresServer

_SMALL: Final = 1_000
WAITING: Final = 100_000
# As many more as the first row of each: their ids and numbers differ, what they hold does not.
_COPIES: Final = """
INSERT INTO flowfabric.exec SELECT '{{fp:' || n %% 256 || '}}:' || gen_random_uuid(),
    %s + n, n %% 256, namespace, lane, req_set, kind, state, bucket, sort, rank + n, created_at,
    due_at, purge_at, grant_until, worker_instance_id, flow_id, parent_id, tied, body
FROM (SELECT * FROM flowfabric.exec WHERE state = %s LIMIT 1) AS one, generate_series(1, %s) AS n"""
_FAR: Final = 1_000_000_000


async def run(options: Options) -> Report:
    with postgres_server() as server:
        set_up_raw(server)
        async with engine_on(server) as engine:
            measures, ratios = await _beside(server, engine, options)
        ratios.append(await _two_processes(server, options))
    if options.fill:
        flat, more = await _flat(options)
        measures += flat
        ratios += more
    return Report(measures, ratios)


async def _beside(
    server: PostgresServer, engine: Engine, options: Options
) -> tuple[list[Measure], list[Ratio]]:
    """Interleaved: noise hits all alike, and ratios are those inside a round."""
    cycle = cycle_of(engine)
    await measure("warm-up", cycle, CALLERS, options.cycles // 5)
    await raw_run(server, options.cycles // 5, _FAR)
    raw, ours, memory = [], [], []
    for number in range(1, options.rounds + 1):
        raw.append(await raw_run(server, options.cycles, (number + 1) * _FAR))
        ours.append(await measured(server, "postgres: engine", cycle, CALLERS, options.cycles))
        memory.append(await _in_memory(options.cycles))
    rounds = list(zip(ours, raw, memory, strict=True))
    speed = middle(one.per_second / base.per_second for one, base, _ in rounds)
    served = middle(one.server_us / base.server_us for one, base, _ in rounds)
    spent = middle(one.cpu_us / other.cpu_us for one, _, other in rounds)
    return [median(memory), median(raw), median(ours)], [
        Ratio.at_least("postgres, 64 callers: engine / raw statements", speed, 0.4),
        Ratio.at_most("postgres: server time / raw statements", served, 1.5),
        Ratio.at_most("postgres: client time / memory engine", spent, 1.25),
    ]


async def _in_memory(cycles: int) -> Measure:
    with tempfile.TemporaryDirectory() as directory:
        async with engine_at("memory", Path(directory)) as engine:
            return await measure("memory: engine", cycle_of(engine), CALLERS, cycles)


async def _two_processes(server: PostgresServer, options: Options) -> Ratio:
    found = []
    for _ in range(options.rounds):
        one, two = [await _processes(server, count, options.cycles) for count in (1, 2)]
        found.append(two / one)
    return Ratio.at_least("postgres: two processes / one", middle(found), 1.1)


async def _processes(server: PostgresServer, count: int, cycles: int) -> float:
    """Cycles per second of so many processes together."""
    words = (sys.executable, "-m", "bench.postgres.process", server.address, str(cycles))
    pipe = asyncio.subprocess.PIPE
    started = [
        await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe) for _ in range(count)
    ]
    for process in started:
        assert process.stdout is not None
        if await process.stdout.readline() != b"ready\n":
            raise RuntimeError("a process of the bench did not start")
    answers = await asyncio.gather(*(process.communicate(b"go\n") for process in started))
    told = [answer.split() for answer, _ in answers]
    return sum(int(done) / float(seconds) for done, seconds in told)


async def _flat(options: Options) -> tuple[list[Measure], list[Ratio]]:
    """A small and a large store side by side, measured in turn."""
    cycles = min(options.cycles, 2_000)
    with postgres_server() as one, postgres_server() as other, postgres_server() as third:
        async with engine_on(one) as small, engine_on(other) as large, engine_on(third) as crowded:
            for engine in (small, large, crowded):
                await measure("warm-up", cycle_of(engine), CALLERS, _SMALL)
            other.run(_COPIES, _FAR, "completed", options.fill)
            await flood(crowded, 1)
            third.run(_COPIES, _FAR, "waiting", WAITING)
            stores = [
                (one, small, f"postgres, {_SMALL:,} stored"),
                (other, large, f"postgres, {options.fill:,} stored"),
                (third, crowded, f"postgres, {WAITING:,} others waiting"),
            ]
            for server, *_ in stores:
                server.run("VACUUM ANALYZE")
            runs: list[list[Measure]] = [[], [], []]
            for _ in range(options.rounds):
                for place, (server, engine, name) in enumerate(stores):
                    run = await measured(server, name, cycle_of(engine), CALLERS, cycles)
                    runs[place].append(run)
    costs = [middle(run.server_us for run in found) for found in runs]
    names = (f"at {options.fill:,} stored", f"with {WAITING:,} others waiting")
    ratios = [
        Ratio.at_most(
            f"postgres: server time per cycle {name} / at {_SMALL:,}", cost / costs[0], 1.5
        )
        for name, cost in zip(names, costs[1:], strict=True)
    ]
    return [median(found) for found in runs], ratios
