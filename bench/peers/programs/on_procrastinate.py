"""Procrastinate: asyncio, 64 at once; what a task returns is not stored."""

import uvloop
from procrastinate import App, PsycopgConnector

from bench.peers.programs.counting import CONCURRENCY, URL, batches, main, ran

BATCH = 1_000
app = App(connector=PsycopgConnector(conninfo=URL, min_size=1, max_size=10))


@app.task(name="noop")
async def noop(n: int) -> None:
    ran()


async def submit() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        for numbers in batches(BATCH):
            await noop.batch_defer_async(*({"n": n} for n in numbers))


async def work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False)


if __name__ == "__main__":
    main(lambda: uvloop.run(submit()), lambda: uvloop.run(work()))
