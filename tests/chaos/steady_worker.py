"""A worker process with work that takes a moment. Run as `python -m tests.chaos.steady_worker URL`.

It has the lease that every worker has unless told otherwise.
"""

import asyncio
import os
import sys

from flowfabric import Context, FlowFabric
from tests.chaos.agent_worker import fabric_at

PLACES = 5


def declared(fabric: FlowFabric) -> FlowFabric:
    async def take_a_moment(place: int) -> int:
        await asyncio.sleep(0.05)
        return place

    @fabric.task
    async def steady(ctx: Context) -> int:
        return sum([await ctx.step("moment", take_a_moment, place) for place in range(PLACES)])

    return fabric


async def main(url: str) -> None:
    async with fabric_at(url, duties=False) as fabric, declared(fabric).worker(concurrency=8):
        os.write(1, b"ready\n")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
