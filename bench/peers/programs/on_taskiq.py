"""Taskiq on its stream broker, which acknowledges, with a result backend; on uvloop."""

import asyncio

import uvloop
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from bench.peers.programs.counting import CONCURRENCY, REDIS_URL, batches, become, main, ran

# From the first message on, also of those that were sent before the worker came.
broker = RedisStreamBroker(url=REDIS_URL, consumer_id="0").with_result_backend(
    RedisAsyncResultBackend(redis_url=REDIS_URL)
)


@broker.task(task_name="noop")
async def noop(n: int) -> None:
    ran()


async def submit() -> None:
    await broker.startup()
    for numbers in batches(CONCURRENCY):
        await asyncio.gather(*(noop.kiq(n) for n in numbers))
    await broker.shutdown()


def work() -> None:
    many = str(CONCURRENCY)
    name = "bench.peers.programs.on_taskiq"
    become(
        "taskiq", "worker", "--workers", "1", "--max-async-tasks", many, "--log-level", "ERROR",
        f"{name}:broker", name,
    )  # fmt: skip


if __name__ == "__main__":
    main(lambda: uvloop.run(submit()), work)
