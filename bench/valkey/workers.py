"""A worker that waits on a lane and does nothing with what it gets, on an engine of its own."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from bench.cycle import RESULT
from bench.valkey.rig import Rig
from flowfabric.engine import Engine
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.engine.attempts.finishing import Finish
from flowfabric.errors import FlowFabricError
from flowfabric.operations.workers import ClaimOrder, Complete

WAITING = ClaimOrder(
    worker_id="bench", worker_instance_id="bench-1", lanes=("bench",), n=64, wait_ms=30_000
)
NOW = msgspec.structs.replace(WAITING, wait_ms=0)


class Seen(msgspec.Struct, frozen=True):
    """Counts work that was claimed, and work that was finished."""

    claimed: Callable[[Claimed], None]
    finished: Callable[[Claimed], None]


def nobody(claimed: Claimed) -> None:
    """Not wanted to know."""


@asynccontextmanager
async def worker(on: Rig, seen: Seen, calls: int = 1) -> AsyncIterator[None]:
    """One worker for the length of the block, with so many calls under way at once."""
    # Should it die, whoever waits for its work must not wait for ever.
    async with on.another() as engine, asyncio.TaskGroup() as group:
        tasks = [group.create_task(_work(engine, seen)) for _ in range(calls)]
        yield
        for task in tasks:
            task.cancel()


async def _work(engine: Engine, seen: Seen) -> None:
    """Wait for work; then finish it and claim the next in one step for as long as there is some."""
    while True:
        held = await engine.claims.claim(WAITING)
        while held:
            for one in held:
                seen.claimed(one)
            ending = [Finish(one.proof, Complete(RESULT)) for one in held]
            answer = await engine.finishing.finish_and_claim(ending, NOW)
            for one, done in zip(held, answer.done, strict=True):
                if isinstance(done, FlowFabricError):
                    raise done
                seen.finished(one)
            held = answer.claimed
