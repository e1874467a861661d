"""How long each step of a flow of ten thousand members keeps everybody else out of the store.

DueContext the time on the clock stands the processor time of the thread that did the step, and how
often the system took the processor away from it: on a busy machine only these two tell what the
store did itself.
"""

import gc
import resource
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

from bench.cycle import RESULT, engine_at
from bench.graphs import fan
from bench.measure import Measure
from bench.report import Ratio
from flowfabric.backend.memory import MemoryRunner
from flowfabric.backend.sql.batches import Committer
from flowfabric.core.rules.attempts import Failure
from flowfabric.engine import Engine
from flowfabric.operations.flows import SubmittedGraph
from flowfabric.operations.workers import ClaimOrder

LARGE = 9_998
MOST_MS = 20
LANE = "large"


class Hold(NamedTuple):
    """One transaction: its time, the processor time in it, and how often it was interrupted."""

    ms: float
    cpu_ms: float
    interruptions: int


class Steps(NamedTuple):
    measure: Measure
    ratios: list[Ratio]


# ---- what is done


async def _release(engine: Engine, flow: SubmittedGraph) -> None:
    """The first member is done, and all behind it may run."""
    (top,) = await engine.claims.claim(_order(1))
    await engine.outcomes.complete(top.proof, RESULT)
    await engine.settling.drain()


async def _skip(engine: Engine, flow: SubmittedGraph) -> None:
    """The first member fails, and nothing behind it will ever run."""
    (top,) = await engine.claims.claim(_order(1))
    await engine.outcomes.fail(top.proof, Failure("broken", "permanent"))
    await engine.settling.drain()


async def _join(engine: Engine, flow: SubmittedGraph) -> None:
    """Members in the middle are done one by one, each another success of the last one's group."""
    await _release(engine, flow)
    for _ in range(3):
        for one in await engine.claims.claim(_order(100)):
            await engine.outcomes.complete(one.proof, RESULT)


async def _cancel(engine: Engine, flow: SubmittedGraph) -> None:
    await engine.flow_operators.cancel_flow(flow.flow_id, "cancel_all", "enough", wait=True)


def _order(n: int) -> ClaimOrder:
    return ClaimOrder(
        worker_id="bench", worker_instance_id="bench-1", lanes=(LANE,), n=n, wait_ms=10_000
    )


STEPS: dict[str, Callable[[Engine, SubmittedGraph], Awaitable[None]] | None] = {
    # Only the graph itself is stored, chunk by chunk.
    "submit": None,
    "release": _release,
    "skip": _skip,
    "join": _join,
    "cancel": _cancel,
}


# ---- how long it takes


async def steps_of(scheme: str, what: str, width: int = LARGE) -> Steps:
    # As a process does that has started and now serves: what is there by now stays.
    gc.collect()
    gc.freeze()
    try:
        return await _measured(scheme, what, width)
    finally:
        gc.unfreeze()


async def _measured(scheme: str, what: str, width: int) -> Steps:
    act = STEPS[what]
    with tempfile.TemporaryDirectory() as directory, stopwatch() as holds:
        async with engine_at(scheme, Path(directory)) as engine:
            graph = fan(width, LANE)
            start = time.perf_counter()
            flow = await engine.graphs.submit_graph(graph)
            if act is not None:
                holds.clear()
                start = time.perf_counter()
                await act(engine, flow)
            seconds = time.perf_counter() - start
            return _judged(f"{scheme}: {what} {width + 2:,}", list(holds), seconds)


def _judged(name: str, holds: list[Hold], seconds: float) -> Steps:
    times = sorted(hold.ms for hold in holds)
    longest = max(holds, key=lambda hold: hold.ms)
    measure = Measure(
        name=name,
        callers=1,
        cycles=len(holds),
        seconds=seconds,
        cpu_seconds=sum(hold.cpu_ms for hold in holds) / 1e3,
        median_ms=times[len(times) // 2],
        p99_ms=times[int(len(times) * 0.99)],
    )
    figures = f"{longest.cpu_ms:.0f} cpu, {longest.interruptions} interruptions"
    return Steps(
        measure,
        [
            Ratio.at_most(f"{name}: longest step, ms ({figures})", longest.ms, MOST_MS),
            Ratio.at_most(
                f"{name}: longest step, ms of processor",
                max(hold.cpu_ms for hold in holds),
                MOST_MS,
            ),
        ],
    )


@contextmanager
def stopwatch() -> Iterator[list[Hold]]:
    """Note every transaction of a store while this is open."""
    holds: list[Hold] = []
    originals = Committer._commit, MemoryRunner._transact
    Committer._commit = _timed(holds, originals[0])  # type: ignore[method-assign]
    MemoryRunner._transact = _timed(holds, originals[1])  # type: ignore[method-assign]
    try:
        yield holds
    finally:
        Committer._commit, MemoryRunner._transact = originals  # type: ignore[method-assign]


def _timed(holds: list[Hold], original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def timed(*given: Any) -> Any:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        cpu, start = time.thread_time(), time.perf_counter()
        answer = original(*given)
        ms, cpu_ms = (time.perf_counter() - start) * 1e3, (time.thread_time() - cpu) * 1e3
        after = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
        holds.append(Hold(ms, cpu_ms, after - before))
        return answer

    return timed
