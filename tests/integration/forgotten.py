"""A process that has a store open, and submits whenever it is told to."""

import asyncio
import sys

from flowfabric.app import open_engine
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.ids import PartitionCounts
from flowfabric.errors import FlowFabricError
from flowfabric.operations.executions import Submission


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


async def main(url: str) -> None:
    counts = PartitionCounts(flow=4, budget=2, quota=2)
    engine = await open_engine(
        Settings(store=parse_store_url(url), counts=counts, generates_secret=True)
    )
    say("ready")
    while await asyncio.to_thread(sys.stdin.readline):
        try:
            await engine.executions.create(Submission(kind="late"))
            say("submitted")
        except FlowFabricError as fault:
            say(type(fault).__name__, fault)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
