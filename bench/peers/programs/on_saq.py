"""SAQ, on uvloop."""

import asyncio

import uvloop
from saq import Queue, Worker

from bench.peers.programs.counting import CONCURRENCY, REDIS_URL, batches, main, ran


async def noop(ctx: object, *, n: int) -> None:
    ran()


async def submit() -> None:
    queue = Queue.from_url(REDIS_URL)
    await queue.connect()
    for numbers in batches(CONCURRENCY):
        await asyncio.gather(*(queue.enqueue("noop", n=n) for n in numbers))
    await queue.disconnect()


async def work() -> None:
    queue = Queue.from_url(REDIS_URL)
    await queue.connect()
    await Worker(queue, functions=[noop], concurrency=CONCURRENCY).start()


if __name__ == "__main__":
    main(lambda: uvloop.run(submit()), lambda: uvloop.run(work()))
