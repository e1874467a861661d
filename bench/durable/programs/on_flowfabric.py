"""FlowFabric: on a store in this process, or over HTTP with a worker process."""

import asyncio
import sys
from typing import Any

import uvloop

from bench.durable.programs.driving import CHILDREN, IN_FLIGHT, SLOW_S, STEPS, URL, drive
from flowfabric import Context, FlowFabric, Run
from flowfabric.config import Settings
from flowfabric.core.tokens import Secret

fabric = FlowFabric(URL, settings=Settings(waitpoint_secret=Secret("5e" * 32)))


async def add(n: int) -> int:
    return n + 1


async def add_slowly(n: int) -> int:
    await asyncio.sleep(SLOW_S)
    return n + 1


@fabric.task
async def ten(ctx: Context, n: int) -> int:
    for place in range(STEPS):
        n = await ctx.step(f"add{place}", add, n)
    return n


@fabric.task
async def ten_slowly(ctx: Context, n: int) -> int:
    for place in range(STEPS):
        n = await ctx.step(f"add{place}", add_slowly, n)
    return n


@fabric.task
async def nothing() -> None:
    pass


@fabric.task
async def child(n: int) -> int:
    return n


@fabric.task
async def family(ctx: Context) -> int:
    return sum(await ctx.gather(*(child.bind(n) for n in range(CHILDREN))))


@fabric.task
async def waiting(ctx: Context) -> str:
    signal = await ctx.wait_for("go")
    return str(signal and signal.payload)


class Engine:
    def __init__(self) -> None:
        self._waiting: dict[str, Run[Any]] = {}

    async def ten(self) -> None:
        assert await ten.call(0) == STEPS

    async def begin_wait(self, name: str) -> None:
        self._waiting[name] = await waiting.submit()

    async def signal(self, name: str) -> None:
        run = self._waiting[name]
        await run.signal("go", name)
        assert await run.result() == name

    async def family(self) -> None:
        assert await family.call() == sum(range(CHILDREN))

    async def nothing(self) -> None:
        await nothing.call()

    async def slow(self) -> None:
        assert await ten_slowly.call(0) == STEPS


async def work() -> None:
    async with fabric, fabric.worker(concurrency=IN_FLIGHT):
        print("ready", flush=True)
        await asyncio.Event().wait()


async def embedded() -> None:
    async with fabric, fabric.worker(concurrency=IN_FLIGHT):
        await drive(Engine())


async def remote() -> None:
    async with fabric:
        await drive(Engine())


if __name__ == "__main__":
    uvloop.run({"work": work, "embedded": embedded, "remote": remote}[sys.argv[1]]())
