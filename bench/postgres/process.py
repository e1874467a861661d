"""Another process that works on the same database: `python -m bench.postgres.process URL CYCLES`.

It begins when it reads a line, and tells how long its cycles took.
"""

import asyncio
import sys

import uvloop

from bench.cycle import cycle_of
from bench.measure import measure
from bench.postgres.rig import CALLERS
from flowfabric.app import open_engine
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.tokens import Secret


async def main(url: str, cycles: int) -> None:
    store = parse_store_url(url)
    engine = await open_engine(Settings(store=store, waitpoint_secret=Secret("5e" * 32)))
    cycle = cycle_of(engine)
    await measure("warm-up", cycle, CALLERS, cycles // 10)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    found = await measure("", cycle, CALLERS, cycles)
    print(found.cycles, found.seconds, flush=True)
    await engine.close()
    await engine.deps.store.backend.close()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2])))
