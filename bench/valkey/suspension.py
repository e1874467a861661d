"""Waiting for the outside on Valkey: from suspend over a signal to the next claim."""

from functools import partial

from bench.measure import Measure
from bench.report import Options, Ratio, Report
from bench.suspension import CALLERS, waits
from bench.valkey.baseline import Baselines, empty, execution, in_turn, plain, swiftness
from bench.valkey.rig import Rig, rig

# Suspend, signal, claim.
OPERATIONS = 3


async def run(options: Options) -> Report:
    cycles = options.cycles
    async with rig() as on:
        raw, shared, nothing, engine = await in_turn(
            options.rounds,
            partial(plain(execution, CALLERS, cycles).run, on),
            partial(plain(execution, CALLERS, 2 * cycles, shares=True).run, on),
            partial(empty(OPERATIONS, CALLERS, 2 * cycles).run, on),
            partial(_run, on, CALLERS, cycles // 3),
        )
        alone = await _run(on, 1, cycles // 10)
        measures = [
            await plain(execution, 1, cycles // 10).run(on),
            alone,
            raw,
            shared,
            nothing,
            engine,
        ]
        ratios = [
            Ratio.at_most("valkey: suspend, signal, claimed again, median ms", alone.median_ms, 4),
            *Baselines(raw, shared, nothing).ratios(f"valkey, {CALLERS} callers", engine),
            *await swiftness(on),
        ]
        return Report(measures, ratios, await on.facts())


async def _run(on: Rig, callers: int, cycles: int) -> Measure:
    async with on.engine() as engine, waits(engine, callers) as cycle:
        return await on.measured("valkey: suspend to claimed", cycle, callers, cycles)
