"""FlowFabric's own worker; results, attempts and events are stored."""

import asyncio

import uvloop

from bench.peers.programs.counting import URL, batches, main, ran
from flowfabric import FlowFabric
from flowfabric.config import Settings
from flowfabric.core.tokens import Secret

BATCH = 1_000

fabric = FlowFabric(URL, settings=Settings(waitpoint_secret=Secret("5e" * 32)))


@fabric.task(name="noop")
async def noop(n: int) -> None:
    ran()


async def submit() -> None:
    async with fabric:
        for numbers in batches(BATCH):
            await noop.submit_many([noop.bind(n) for n in numbers])


async def work() -> None:
    async with fabric, fabric.worker():
        await asyncio.Event().wait()


if __name__ == "__main__":
    main(lambda: uvloop.run(submit()), lambda: uvloop.run(work()))
