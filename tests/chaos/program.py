"""A worker process with a durable handler. Run as `python -m tests.chaos.program URL NOTES`.

Every execution of a step leaves a line in the notes; the line is written before the step counts.
"""

import asyncio
import os
import sys
from pathlib import Path
from uuid import uuid4

from flowfabric import Context, FlowFabric
from flowfabric.config import Settings
from flowfabric.core.tokens import Secret

STEPS = 4
COINS = 3
SETTINGS = Settings(timer_sweep_interval_ms=100, waitpoint_secret=Secret("5e" * 32))


def declared(url: str, notes: Path) -> FlowFabric:
    fabric = FlowFabric(url, settings=SETTINGS)

    @fabric.task(budget="purse")
    async def errand(ctx: Context, number: int) -> list[str]:
        async def walk(place: int) -> str:
            own = uuid4().hex
            note(notes, f"{number} {place} {own}")
            await asyncio.sleep(0.002)
            return own

        found = [await ctx.step("walk", walk, place) for place in range(STEPS)]
        await ctx.spend(coins=COINS)
        await ctx.sleep("10ms")
        found.append(await ctx.call(fetch, number))
        for place in range(STEPS):
            await ctx.stream(f"{place}")
        found += await asyncio.gather(
            *(ctx.step("back", walk, STEPS + place) for place in range(STEPS))
        )
        return found

    @fabric.task()
    async def fetch(number: int) -> str:
        await asyncio.sleep(0.002)
        return f"child {number}"

    return fabric


def note(notes: Path, line: str) -> None:
    """One write call, so that a process that is killed leaves whole lines; then say so."""
    handle = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(handle, f"{line}\n".encode())
    finally:
        os.close(handle)
    os.write(1, b"stepped\n")


async def main(url: str, notes: str) -> None:
    fabric = declared(url, Path(notes))
    async with fabric:
        await fabric.worker(lease="1s", concurrency=8).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
