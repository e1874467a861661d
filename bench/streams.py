"""Output of attempts: appends, patches and the way of a frame to its readers, beside raw SQLite."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count, cycle
from pathlib import Path

from bench.measure import Cycle, Measure, measure, median
from bench.raw import RawWriter
from bench.raw_streams import Stream, raw_appends, raw_streams, raw_ways
from bench.report import Options, Ratio, Report
from flowfabric.app import running
from flowfabric.config import Settings, StoreUrl
from flowfabric.engine import Engine
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.operations.executions import Submission
from flowfabric.operations.streams import Frame, Tail
from flowfabric.operations.workers import ClaimOrder

CALLERS = 64
READERS = 1_000
TOKEN = b"t" * 24

Kind = Callable[[Engine], AbstractAsyncContextManager[Cycle]]
RawKind = Callable[[RawWriter, list[Stream]], Cycle]


async def run(options: Options) -> Report:
    cycles = options.cycles
    raw, engine = [], []
    for _ in range(options.rounds):
        raw.append(await _raw_run("append", raw_appends, CALLERS, cycles))
        engine.append(await _engine_run("sqlite: append", appends, CALLERS, cycles))
    baseline, concurrent = median(raw), median(engine)
    way = await _engine_run("sqlite: append to reader", ways, 1, cycles // 6)
    measures = [
        await _engine_run("memory: append", appends, 1, cycles // 3),
        await _engine_run("memory: append", appends, CALLERS, cycles),
        await _raw_run("append", raw_appends, 1, cycles // 6),
        await _engine_run("sqlite: append", appends, 1, cycles // 6),
        baseline,
        concurrent,
        await _engine_run("memory: patch", patches, CALLERS, cycles),
        await _engine_run("sqlite: patch", patches, CALLERS, cycles),
        await _engine_run("memory: append to reader", ways, 1, cycles // 3),
        await _raw_run("append to reader", raw_ways, 1, cycles // 6),
        way,
        await _engine_run(f"memory: append to {READERS:,} readers", fans, 1, 20),
        await _engine_run(f"sqlite: append to {READERS:,} readers", fans, 1, 20),
    ]
    share = concurrent.per_second / baseline.per_second
    ratios = [
        Ratio.at_least("sqlite, 64 callers: append / raw statements", share, 0.25),
        Ratio.at_most("sqlite: append to reader, median ms", way.median_ms, 5),
    ]
    return Report(measures, ratios)


async def _engine_run(name: str, kind: Kind, callers: int, cycles: int) -> Measure:
    with tempfile.TemporaryDirectory() as directory:
        store = StoreUrl(name.partition(":")[0], str(Path(directory) / "bench.db"))
        settings = Settings(store=store, max_concurrent_stream_ops=2 * READERS)
        return await _run(settings, name, kind, callers, cycles)


async def _run(settings: Settings, name: str, kind: Kind, callers: int, cycles: int) -> Measure:
    async with running(settings) as engine, kind(engine) as one:
        return await _measured(name, one, callers, cycles)


async def _measured(name: str, one: Cycle, callers: int, cycles: int) -> Measure:
    await measure("warm-up", one, callers, max(2, cycles // 10))
    return await measure(name, one, callers, cycles)


async def _raw_run(name: str, kind: RawKind, callers: int, cycles: int) -> Measure:
    with tempfile.TemporaryDirectory() as directory:
        async with raw_streams(Path(directory), CALLERS) as (writer, streams):
            return await _measured(f"sqlite: raw {name}", kind(writer, streams), callers, cycles)


# ---- what is measured


@asynccontextmanager
async def appends(engine: Engine) -> AsyncIterator[Cycle]:
    """Append a token to one of several attempts in turn."""
    turn = cycle(await started(engine, CALLERS))
    frames = [Frame(frame_type="token", payload=TOKEN)]

    async def append() -> None:
        await engine.streams.append(next(turn), 0, frames)

    yield append


@asynccontextmanager
async def patches(engine: Engine) -> AsyncIterator[Cycle]:
    """Patch the summary of one of several attempts in turn."""
    turn = cycle(await started(engine, CALLERS))
    numbers = count()

    async def patch() -> None:
        payload = b'{"done":%d,"text":"%s"}' % (next(numbers), TOKEN)
        frame = Frame(frame_type="summary", payload=payload, mode="summary")
        await engine.streams.append(next(turn), 0, [frame])

    yield patch


@asynccontextmanager
async def ways(engine: Engine) -> AsyncIterator[Cycle]:
    """From the call that appends a token until a waiting reader has it."""
    async with _read_by(engine, 1) as append:
        yield append


@asynccontextmanager
async def fans(engine: Engine) -> AsyncIterator[Cycle]:
    """The same, until the last of very many readers has it."""
    async with _read_by(engine, READERS) as append:
        yield append


@asynccontextmanager
async def _read_by(engine: Engine, readers: int) -> AsyncIterator[Cycle]:
    (held,) = await started(engine, 1)
    missing = 0
    everybody_has_it = asyncio.Event()

    async def read() -> None:
        nonlocal missing
        own, after = held.execution_id, "0-0"
        while True:
            asked = Tail(after=after, block_ms=30_000)
            page = await engine.streams.tail_stream(own, 0, asked)
            after = page.next_after
            missing -= len(page.frames)
            if not missing:
                everybody_has_it.set()

    async def append() -> None:
        nonlocal missing
        missing = readers
        everybody_has_it.clear()
        await engine.streams.append(held, 0, [Frame(frame_type="token", payload=TOKEN)])
        await everybody_has_it.wait()

    tasks = [asyncio.ensure_future(read()) for _ in range(readers)]
    yield append
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


async def started(engine: Engine, n: int) -> list[LeaseProof]:
    for _ in range(n):
        await engine.executions.create(Submission(kind="bench"))
    order = ClaimOrder(
        worker_id="bench", worker_instance_id="bench-1", lanes=("default",), n=n, lease_ms=600_000
    )
    return [claimed.proof for claimed in await engine.claims.claim(order)]
