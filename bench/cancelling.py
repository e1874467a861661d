"""From a cancel until the handler is cancelled, and until all children of an execution are."""

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from bench.http import server
from bench.postgres.rig import postgres_server
from bench.raw_valkey import valkey_server
from bench.report import Options, Ratio, Report
from flowfabric import Context, FlowFabric
from flowfabric.config import Settings
from flowfabric.core.tokens import Secret
from tests.valkey_server import ValkeyCluster

# Running at the same time, and how often so many.
_HANDLERS: Final = 50
_WAVES: Final = 4
# Three levels of children: 10, 90 and 900.
_FANS: Final = (10, 9, 10)
_CHILDREN: Final = 1_000
_SECRET: Final = "5e" * 32
_APART_S: Final = 0.01
_LOOK_S: Final = 0.01
_PERCENT: Final = 0.99


async def run(options: Options) -> Report:
    ratios = await _figures("memory", "memory://")
    with tempfile.TemporaryDirectory() as directory:
        ratios += await _figures("sqlite", f"sqlite:///{Path(directory) / 'bench.db'}")
        behind = f"sqlite:///{Path(directory) / 'server.db'}"
        async with server(behind, FF_WAITPOINT_HMAC_SECRET=_SECRET) as running:
            ratios += await _figures("http", f"http://127.0.0.1:{running.port}")
    return Report([], ratios)


async def run_on_valkey(options: Options) -> Report:
    with valkey_server() as one:
        ratios = await _figures("valkey", f"valkey://127.0.0.1:{one.port}")
    cluster = ValkeyCluster()
    try:
        port = cluster.primaries[0].port
        ratios += await _figures("valkey cluster", f"valkey://127.0.0.1:{port}?cluster=true")
    finally:
        cluster.end()
    return Report([], ratios)


async def run_on_postgres(options: Options) -> Report:
    with postgres_server() as one:
        return Report([], await _figures("postgres", one.address))


async def _figures(store: str, url: str) -> list[Ratio]:
    async with _fabric(url) as fabric:
        noticed = sorted([s for _ in range(_WAVES) for s in await _wave(fabric)])
        late = noticed[int(len(noticed) * _PERCENT)]
        middle = noticed[len(noticed) // 2]
        cascade = await _cascade(fabric)
    return [
        Ratio.seen(f"{store}: cancel to cancelled handler, p50 s", middle),
        Ratio.at_most(f"{store}: cancel to cancelled handler, p99 s", late, 1.0),
        Ratio.at_most(f"{store}: cascade over {_CHILDREN} children, s", cascade, 2.0),
    ]


@asynccontextmanager
async def _fabric(url: str) -> AsyncIterator[FlowFabric]:
    settings = Settings(waitpoint_secret=Secret(_SECRET))
    async with FlowFabric(url, settings=settings) as opened:
        yield opened


async def _wave(fabric: FlowFabric) -> list[float]:
    """Seconds from each cancel to the end of its handler."""
    begun, all_begun, all_noticed = 0, asyncio.Event(), asyncio.Event()
    cancelled_at: dict[str, float] = {}
    noticed: dict[str, float] = {}

    @fabric.task(name=f"run-{uuid4().hex}", lane="cancelling")
    async def run(ctx: Context) -> None:
        nonlocal begun
        begun += 1
        if begun == _HANDLERS:
            all_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            own = ctx.info.execution_id
            noticed[own] = time.perf_counter() - cancelled_at[own]
            if len(noticed) == _HANDLERS:
                all_noticed.set()

    async with fabric.worker(lanes=["cancelling"], lease="60s"):
        runs = [await run.submit() for _ in range(_HANDLERS)]
        await all_begun.wait()
        for one in runs:
            cancelled_at[one.id] = time.perf_counter()
            await one.cancel("measured")
            await asyncio.sleep(_APART_S)
        await all_noticed.wait()
    return list(noticed.values())


async def _cascade(fabric: FlowFabric) -> float:
    """Seconds from the cancel of a root until its last descendant is cancelled."""

    @fabric.task(lane="nobody")
    async def leaf() -> None: ...

    @fabric.task(lane="tree")
    async def tree(ctx: Context, level: int) -> None:
        below = tree.bind(level + 1) if level + 1 < len(_FANS) else leaf.bind()
        await ctx.gather(*[below] * _FANS[level])

    async with fabric.worker(lanes=["tree"], concurrency=16):
        root = await tree.submit(0)
        await _counted(fabric, root.id, "cancelled", all_of=False)
        begun = time.perf_counter()
        await root.cancel("measured")
        await _counted(fabric, root.id, "cancelled", all_of=True)
        return time.perf_counter() - begun


async def _counted(fabric: FlowFabric, root_id: str, state: str, *, all_of: bool) -> None:
    """Until the tree is complete, or all of it is in a state."""
    while True:
        flow_id = (await fabric.run(root_id).info()).flow_id
        flow = await fabric.admin.describe_flow(flow_id) if flow_id else None
        wanted = _CHILDREN + 1
        if (
            flow is not None
            and flow.node_count == wanted
            and (not all_of or flow.members.get(state) == wanted)
        ):
            return
        await asyncio.sleep(_LOOK_S)
