"""Create + claim + complete on memory and SQLite, beside the raw-statement baseline."""

import tempfile
from pathlib import Path

from bench.cycle import cycle_of, engine_at, fill
from bench.measure import Measure, measure, median
from bench.raw import open_raw, raw_cycle_of
from bench.report import Options, Ratio, Report

CALLERS = 64
_SMALL = 1_000


async def run(options: Options) -> Report:
    cycles = options.cycles
    raw, engine = [], []
    for _ in range(options.rounds):
        raw.append(await _raw_run(CALLERS, cycles))
        engine.append(await _engine_run("sqlite", CALLERS, cycles))
    baseline, concurrent = median(raw), median(engine)
    measures = [
        await _engine_run("memory", 1, cycles // 3),
        await _engine_run("memory", CALLERS, cycles),
        await _raw_run(1, cycles // 10),
        await _engine_run("sqlite", 1, cycles // 10),
        baseline,
        concurrent,
    ]
    ratios = [
        Ratio.at_least(
            "sqlite, 64 callers: engine / raw statements",
            concurrent.per_second / baseline.per_second,
            0.5,
        ),
        Ratio.at_least("sqlite, 64 callers: cycles per second", concurrent.per_second, 1_800),
    ]
    if options.fill:
        small, large = await _flat_run(options)
        measures += [small, large]
        growth = small.per_second / large.per_second
        name = f"sqlite: cost per cycle at {options.fill:,} stored / at {_SMALL:,}"
        ratios.append(Ratio.at_most(name, growth, 1.5))
    return Report(measures, ratios)


async def _engine_run(scheme: str, callers: int, cycles: int) -> Measure:
    with tempfile.TemporaryDirectory() as directory:
        async with engine_at(scheme, Path(directory)) as engine:
            cycle = cycle_of(engine)
            await measure("warm-up", cycle, callers, cycles // 10)
            return await measure(f"{scheme}: engine", cycle, callers, cycles)


async def _raw_run(callers: int, cycles: int) -> Measure:
    with tempfile.TemporaryDirectory() as directory:
        writer = open_raw(Path(directory) / "raw.db")
        cycle = raw_cycle_of(writer)
        try:
            await measure("warm-up", cycle, callers, cycles // 10)
            return await measure("sqlite: raw statements", cycle, callers, cycles)
        finally:
            writer.close()


async def _flat_run(options: Options) -> tuple[Measure, Measure]:
    """A small and a large store side by side, measured in turn: noise hits both alike."""
    cycles = min(options.cycles, 2_000)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        async with engine_at("sqlite", Path(one)) as small, engine_at("sqlite", Path(other)) as big:
            await fill(small, _SMALL)
            await fill(big, options.fill)
            runs: tuple[list[Measure], list[Measure]] = ([], [])
            for _ in range(options.rounds):
                for engine, stored, found in ((small, _SMALL, 0), (big, options.fill, 1)):
                    name = f"sqlite: engine, {stored:,} stored"
                    runs[found].append(await measure(name, cycle_of(engine), CALLERS, cycles))
    return median(runs[0]), median(runs[1])
