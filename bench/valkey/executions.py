"""Create + claim + complete on Valkey, from many callers and in batches."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from bench.cycle import INPUT, RESULT, cycle_of
from bench.measure import Cycle, Measure, each
from bench.report import Options, Ratio, Report
from bench.valkey.baseline import (
    LEAST_OF_RAW,
    Baselines,
    empty,
    execution,
    in_turn,
    plain,
    swiftness,
)
from bench.valkey.rig import Rig, rig
from flowfabric.engine import Engine
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.engine.attempts.finishing import Finish
from flowfabric.errors import FlowFabricError
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder, Complete

CALLERS = 64
BATCH = 50
# So that the client works while the server does.
BATCHES_AT_ONCE = 4
OPERATIONS = 3
ORDER = ClaimOrder(worker_id="bench", worker_instance_id="bench-1", lanes=("default",), n=BATCH)


async def run(options: Options) -> Report:
    cycles = options.cycles
    async with rig() as on:
        raw, shared, nothing, engine, batched = await in_turn(
            options.rounds,
            partial(plain(execution, CALLERS, cycles).run, on),
            partial(plain(execution, CALLERS, 2 * cycles, shares=True).run, on),
            partial(empty(OPERATIONS, CALLERS, 2 * cycles).run, on),
            partial(_singly, on, CALLERS, cycles),
            partial(_batched, on, "engine, batches of 50", batches_of, cycles),
        )
        measures = [
            await plain(execution, 1, cycles // 10).run(on),
            await _singly(on, 1, cycles // 10),
            raw,
            shared,
            nothing,
            engine,
            batched,
            await _batched(on, "engine, finish and claim 50", rolling_of, cycles),
        ]
        many, batches = f"valkey, {CALLERS} callers", f"valkey, batches of {BATCH}"
        ratios = [
            Ratio.at_least(f"{many}: cycles per second", engine.per_second, 8_000),
            Ratio.at_least(f"{batches}: cycles per second", batched.per_second, 12_000),
            Ratio.at_most(f"{batches}: server µs per cycle", batched.server_us, 90),
            *Baselines(raw, shared, nothing).ratios(many, engine, LEAST_OF_RAW),
            *Baselines(raw, shared, nothing).ratios(batches, batched, LEAST_OF_RAW),
            *await swiftness(on),
        ]
        return Report(measures, ratios, await on.facts())


async def _singly(on: Rig, callers: int, number: int) -> Measure:
    async with on.engine() as engine:
        return await on.measured("valkey: engine", cycle_of(engine), callers, number)


async def _batched(on: Rig, name: str, make: Callable[[Engine], Cycle], number: int) -> Measure:
    batches = max(BATCHES_AT_ONCE, number // BATCH)
    async with on.engine() as engine:
        found = await on.measured(f"valkey: {name}", make(engine), BATCHES_AT_ONCE, batches)
    return each(found, BATCH)


def batches_of(engine: Engine) -> Cycle:
    """Fifty submitted in one call, fifty claimed, those completed."""

    async def cycle() -> None:
        await _create(engine)
        claimed = await engine.claims.claim(ORDER)
        _check(await engine.finishing.finish([_completed(one) for one in claimed]))

    return cycle


def rolling_of(engine: Engine) -> Cycle:
    """Fifty submitted; then the fifty held are finished and the next claimed with them."""
    running: list[list[Finish]] = []

    async def cycle() -> None:
        await _create(engine)
        finishes = running.pop() if running else []
        answer = await engine.finishing.finish_and_claim(finishes, ORDER)
        _check(answer.done)
        claimed = answer.claimed
        if len(claimed) < BATCH:
            # A step of the store claims no more than it can in a moment.
            rest = msgspec.structs.replace(ORDER, n=BATCH - len(claimed))
            claimed = [*claimed, *await engine.claims.claim(rest)]
        running.append([_completed(one) for one in claimed])

    return cycle


async def _create(engine: Engine) -> None:
    submission = Submission(kind="bench", input=INPUT, creator="bench")
    _check(await engine.executions.create_many([submission] * BATCH))


def _completed(claimed: Claimed) -> Finish:
    return Finish(claimed.proof, Complete(RESULT))


def _check(answers: Sequence[object]) -> None:
    for answer in answers:
        if isinstance(answer, FlowFabricError):
            raise answer
