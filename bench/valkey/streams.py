"""Output of attempts on Valkey: appends and patches beside XADD, and the way to a reader."""

from functools import partial

from bench.measure import Measure
from bench.raw_valkey import raw_ways
from bench.report import Options, Ratio, Report
from bench.streams import CALLERS, READERS, TOKEN, Kind, appends, fans, patches, ways
from bench.valkey.baseline import LEAST_OF_RAW, Baselines, Words, empty, in_turn, plain, swiftness
from bench.valkey.rig import Rig, rig

FRAME = TOKEN + b"f" * 46


def xadd(own: str) -> tuple[Words, ...]:
    """One append to one of as many streams as there are callers."""
    number = int(own.partition(":")[2]) % CALLERS
    return (("XADD", f"frames:{number}", "*", "f", FRAME),)


async def run(options: Options) -> Report:
    cycles = options.cycles
    async with rig() as on:
        raw, shared, nothing, engine = await in_turn(
            options.rounds,
            partial(plain(xadd, CALLERS, 2 * cycles).run, on),
            partial(plain(xadd, CALLERS, 4 * cycles, shares=True).run, on),
            partial(empty(1, CALLERS, 4 * cycles).run, on),
            partial(_run, on, "append", appends, CALLERS, cycles),
        )
        async with raw_ways(on.server) as one:
            raw_way = await on.measured("valkey: XADD to reader", one, 1, cycles // 6)
        way = await _run(on, "append to reader", ways, 1, cycles // 6)
        measures = [
            await plain(xadd, 1, cycles // 3).run(on),
            await _run(on, "append", appends, 1, cycles // 3),
            raw,
            shared,
            nothing,
            engine,
            await _run(on, "patch", patches, CALLERS, cycles),
            raw_way,
            way,
            await _run(on, f"append to {READERS:,} readers", fans, 1, 20),
        ]
        ratios = [
            *Baselines(raw, shared, nothing).ratios(
                f"valkey, {CALLERS} callers", engine, LEAST_OF_RAW
            ),
            Ratio.at_most("valkey: append to reader, median ms", way.median_ms, 5),
            Ratio.seen(
                "valkey: append to reader / XADD to reader", way.median_ms / raw_way.median_ms
            ),
            *await swiftness(on),
        ]
        return Report(measures, ratios, await on.facts())


async def _run(on: Rig, name: str, kind: Kind, callers: int, cycles: int) -> Measure:
    async with on.engine() as engine, kind(engine) as one:
        return await on.measured(f"valkey: {name}", one, callers, cycles)
