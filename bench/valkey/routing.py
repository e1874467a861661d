"""Finding the one execution a worker can run among very many it cannot, and finding none."""

import asyncio
from functools import partial

from bench.cycle import INPUT, RESULT
from bench.measure import Cycle, Measure
from bench.report import Options, Ratio, Report
from bench.valkey.baseline import in_turn, swiftness
from bench.valkey.rig import Rig, rig
from flowfabric.engine import Engine
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder

CALLERS = 64
# Times the size of other large stores.
CROWD = 5
BATCH = 200
EMPTY, FULL = "empty", "full"


def needing(capability: str, lane: str) -> Submission:
    policy = {"routing_requirements": {"required_capabilities": [capability]}}
    return Submission(kind="bench", lane=lane, input=INPUT, policy=policy)


def able(lane: str) -> ClaimOrder:
    return ClaimOrder(
        worker_id="bench", worker_instance_id="bench-1", lanes=(lane,), capabilities=("rare",)
    )


async def run(options: Options) -> Report:
    waiting, cycles = CROWD * options.fill, options.cycles // 2
    async with rig() as on, on.engine() as engine:
        await _crowd(engine, waiting)
        few, many, none_of_few, none_of_many = await in_turn(
            options.rounds,
            *(
                partial(_run, on, f"{what}, {lane} lane", make(engine, lane), cycles)
                for what, make in (("rare one", rare_of), ("nothing fits", nothing_of))
                for lane in (EMPTY, FULL)
            ),
        )
        compared = f"with {waiting:,} others / with none"
        ratios = [
            _at_most_like(f"rare one {compared}: server µs", many.server_us, few.server_us),
            _at_most_like(f"rare one {compared}: median ms", many.median_ms, few.median_ms),
            _at_most_like(
                f"nothing fits {compared}: server µs", none_of_many.server_us, none_of_few.server_us
            ),
            *await swiftness(on),
        ]
        facts = await on.facts() | {"waiting in the full lane": f"{waiting:,}"}
        return Report([few, many, none_of_few, none_of_many], ratios, facts)


def _at_most_like(name: str, found: float, like: float) -> Ratio:
    return Ratio.at_most(f"valkey, {name}", found / like, 1.5)


async def _run(on: Rig, name: str, cycle: Cycle, cycles: int) -> Measure:
    return await on.measured(f"valkey: {name}", cycle, CALLERS, cycles)


async def _crowd(engine: Engine, total: int) -> None:
    """Work for another kind of worker, submitted before anybody else's."""
    common = needing("common", FULL)
    for start in range(0, total, BATCH):
        number = min(BATCH, total - start)
        await asyncio.gather(*(engine.executions.create(common) for _ in range(number)))


def rare_of(engine: Engine, lane: str) -> Cycle:
    submission, order = needing("rare", lane), able(lane)

    async def cycle() -> None:
        await engine.executions.create(submission)
        (claimed,) = await engine.claims.claim(order)
        await engine.outcomes.complete(claimed.proof, RESULT)

    return cycle


def nothing_of(engine: Engine, lane: str) -> Cycle:
    order = able(lane)

    async def cycle() -> None:
        assert not await engine.claims.claim(order)

    return cycle
