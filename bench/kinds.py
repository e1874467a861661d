"""Claims by a worker of many kinds beside those by a worker of one."""

import resource
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

from bench.cycle import INPUT, engine_at
from bench.postgres.rig import engine_on, postgres_server, server_cpu_s
from bench.report import Options, Ratio, Report
from bench.valkey.rig import rig
from flowfabric.engine import Engine
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder

KINDS: Final = tuple(f"kind-{number}" for number in range(200))
_CLAIM: Final = 16
_CLAIMS: Final = 20
_BATCH: Final = 200
# Times the size of other large stores.
_CROWD: Final = 5

# Processor time in seconds, of this process and of the store.
_Clock = Callable[[], Awaitable[float]]


class _Case(NamedTuple):
    """Which kinds the worker has, which of them have work, and what is wanted of the cost."""

    name: str
    lane: str
    known: tuple[str, ...]
    busy: tuple[str, ...]
    most: float = 0.0


_CASES: Final = (
    _Case("one kind", "one", KINDS[:1], KINDS[:1]),
    _Case("200 kinds, one has work", "one-of-many", KINDS, KINDS[:1], 1.1),
    _Case("200 kinds, all have work", "many", KINDS, KINDS, 2.0),
    _Case("200 kinds, one has work, others wait", "crowd", KINDS, KINDS[:1], 1.1),
)


async def run(options: Options) -> Report:
    ratios: list[Ratio] = []
    for scheme in ("memory", "sqlite"):
        with tempfile.TemporaryDirectory() as directory:
            async with engine_at(scheme, Path(directory)) as engine:
                ratios += await _compared(scheme, engine, _own, options)
    return Report([], ratios)


async def run_on_valkey(options: Options) -> Report:
    async with AsyncExitStack() as stack:
        on = await stack.enter_async_context(rig())
        engine = await stack.enter_async_context(on.engine())

        async def clock() -> float:
            return await _own() + (await on.usage()).cpu_seconds

        ratios = await _compared("valkey", engine, clock, options)
        return Report([], ratios, await on.facts())


async def run_on_postgres(options: Options) -> Report:
    with postgres_server() as server:
        async with engine_on(server) as engine:

            async def clock() -> float:
                return await _own() + server_cpu_s(server)

            return Report([], await _compared("postgres", engine, clock, options))


async def _compared(store: str, engine: Engine, clock: _Clock, options: Options) -> list[Ratio]:
    """Rounds in turn, so that all cases have the same share of a busy machine."""
    others = [Submission(kind=f"other-{n % 10}", lane="crowd") for n in range(_BATCH)]
    for _ in range(_CROWD * options.fill // _BATCH):
        await engine.executions.create_many(others)
    found: dict[str, list[float]] = {case.name: [] for case in _CASES}
    for _ in range(3 * options.rounds):
        for case in _CASES:
            found[case.name].append(await _cost(engine, case, clock))
    least = statistics.median(found[_CASES[0].name])
    return [
        Ratio.at_most(
            f"{store}, claims of {_CLAIM}: {case.name} / one kind: cpu",
            statistics.median(found[case.name]) / least,
            case.most,
        )
        for case in _CASES[1:]
    ]


async def _cost(engine: Engine, case: _Case, clock: _Clock) -> float:
    submissions = [
        Submission(kind=case.busy[n % len(case.busy)], lane=case.lane, input=INPUT)
        for n in range(_CLAIM * _CLAIMS)
    ]
    await engine.executions.create_many(submissions)
    order = ClaimOrder(
        worker_id="bench",
        worker_instance_id="bench-1",
        lanes=(case.lane,),
        kinds=case.known,
        n=_CLAIM,
    )
    before = await clock()
    for _ in range(_CLAIMS):
        assert len(await engine.claims.claim(order)) == _CLAIM
    return await clock() - before


async def _own() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
