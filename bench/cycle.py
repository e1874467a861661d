"""The engine's create + claim + complete, through its public calls."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from bench.measure import Cycle
from flowfabric.app import open_engine
from flowfabric.config import Settings, StoreUrl
from flowfabric.engine import Engine
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder

INPUT = b"x" * 256
RESULT = b"y" * 256


@asynccontextmanager
async def engine_at(scheme: str, directory: Path, **options: str) -> AsyncIterator[Engine]:
    path = str(directory / f"bench-{scheme}.db") if scheme == "sqlite" else ""
    engine = await open_engine(Settings(store=StoreUrl(scheme, path, options)))
    try:
        yield engine
    finally:
        await engine.close()
        await engine.deps.store.backend.close()


def cycle_of(engine: Engine) -> Cycle:
    """One execution submitted, one claimed, that one completed."""
    submission = Submission(kind="bench", input=INPUT, creator="bench")
    order = ClaimOrder(worker_id="bench", worker_instance_id="bench-1", lanes=("default",))

    async def cycle() -> None:
        await engine.executions.create(submission)
        # Another process may be faster, and what it submitted instead not be there yet.
        while not (found := await engine.claims.claim(order)):
            pass
        (claimed,) = found
        await engine.outcomes.complete(claimed.proof, RESULT)

    return cycle


async def fill(engine: Engine, total: int, batch: int = 500) -> None:
    """Store finished executions until there are `total`, the way real ones come to be there."""
    cycle = cycle_of(engine)
    for start in range(0, total, batch):
        await asyncio.gather(*(cycle() for _ in range(min(batch, total - start))))
