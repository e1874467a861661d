"""PgQueuer: asyncio, statuses written in batches; what a task returns is not stored."""

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgPoolDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.peers.programs.counting import URL, batches, main, ran

BATCH = 1_000


async def submit() -> None:
    async with asyncpg.create_pool(URL, min_size=1, max_size=4) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        await queries.install()
        for numbers in batches(BATCH):
            bodies = [b"%d" % n for n in numbers]
            await queries.enqueue(["noop"] * len(bodies), list(bodies), [0] * len(bodies))


async def work() -> None:
    async with asyncpg.create_pool(URL, min_size=2, max_size=8) as pool:
        queue = PgQueuer(AsyncpgPoolDriver(pool))

        @queue.entrypoint("noop")
        async def noop(job: Job) -> None:
            ran()

        await queue.run(batch_size=64)


if __name__ == "__main__":
    main(lambda: uvloop.run(submit()), lambda: uvloop.run(work()))
