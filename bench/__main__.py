"""`make bench`: create + claim + complete on memory and SQLite beside the raw-statement baseline."""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

from bench.cycle import cycle_of, engine_at, fill
from bench.measure import Measure, measure
from bench.raw import open_raw, raw_cycle_of
from bench.report import Ratio, Report

CALLERS = 64
RESULTS = Path(__file__).parent / "results"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=", description=__doc__)
    parser.add_argument("--cycles", type=int, default=6_000, help="cycles per concurrent measure")
    parser.add_argument("--rounds", type=int, default=3, help="engine and baseline alternate")
    parser.add_argument(
        "--fill", type=int, default=20_000, help="stored executions of the large store (0: skip)"
    )
    parser.add_argument("--json", type=Path, default=RESULTS / "executions.json")
    return parser.parse_args()


async def engine_run(scheme: str, callers: int, cycles: int) -> Measure:
    with tempfile.TemporaryDirectory() as directory:
        async with engine_at(scheme, Path(directory)) as engine:
            cycle = cycle_of(engine)
            await measure("warm-up", cycle, callers, cycles // 10)
            return await measure(f"{scheme}: engine", cycle, callers, cycles)


async def raw_run(callers: int, cycles: int) -> Measure:
    with tempfile.TemporaryDirectory() as directory:
        writer = open_raw(Path(directory) / "raw.db")
        cycle = raw_cycle_of(writer)
        try:
            await measure("warm-up", cycle, callers, cycles // 10)
            return await measure("sqlite: raw statements", cycle, callers, cycles)
        finally:
            writer.close()


async def flat_run(total: int, cycles: int) -> list[Measure]:
    """The same measure on a small store and after it has grown to `total`."""
    found = []
    with tempfile.TemporaryDirectory() as directory:
        async with engine_at("sqlite", Path(directory)) as engine:
            stored = 0
            for size in (1_000, total):
                await fill(engine, size - stored)
                name = f"sqlite: engine, {size:,} stored"
                found.append(await measure(name, cycle_of(engine), CALLERS, cycles))
                stored = size + cycles
    return found


def median(runs: list[Measure]) -> Measure:
    return sorted(runs, key=lambda run: run.per_second)[len(runs) // 2]


async def main(options: argparse.Namespace) -> Report:
    cycles = options.cycles
    raw, engine = [], []
    for _ in range(options.rounds):
        raw.append(await raw_run(CALLERS, cycles))
        engine.append(await engine_run("sqlite", CALLERS, cycles))
    measures = [
        await engine_run("memory", 1, cycles // 3),
        await engine_run("memory", CALLERS, cycles),
        await raw_run(1, cycles // 10),
        await engine_run("sqlite", 1, cycles // 10),
        median(raw),
        median(engine),
    ]
    share = measures[5].per_second / measures[4].per_second
    ratios = [
        Ratio("sqlite, 64 callers: engine / raw statements", share, ">= 0.5", share >= 0.5),
        Ratio(
            "sqlite, 64 callers: cycles per second",
            measures[5].per_second,
            ">= 1800",
            measures[5].per_second >= 1_800,
        ),
    ]
    if options.fill:
        small, large = await flat_run(options.fill, min(cycles, 4_000))
        measures += [small, large]
        growth = small.per_second / large.per_second
        name = f"sqlite: cost per cycle at {options.fill:,} stored / at 1,000"
        ratios.append(Ratio(name, growth, "<= 1.5", growth <= 1.5))
    return Report(measures, ratios)


if __name__ == "__main__":
    chosen = arguments()
    report = asyncio.run(main(chosen))
    print(report.table())
    report.save(chosen.json)
    print(f"\nwritten: {chosen.json}")
    sys.exit(0 if all(ratio.holds for ratio in report.ratios) else 1)
