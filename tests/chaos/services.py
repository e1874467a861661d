"""Workers of two services and of two releases of a third, all on one lane. Run as
`python -m tests.chaos.services URL RELEASE`."""

import asyncio
import os
import sys

from flowfabric import FlowFabric
from tests.chaos.program import SETTINGS
from tests.serving import TOKEN

# What each release runs; all of it has work on the same lane.
RELEASES = {
    "invoices": ("invoice",),
    "parcels": ("parcel",),
    "reports-1": ("report",),
    "reports-2": ("report", "digest"),
}
KINDS = tuple(dict.fromkeys(kind for kinds in RELEASES.values() for kind in kinds))


def fabric_at(url: str) -> FlowFabric:
    token = TOKEN if url.startswith("http") else None
    return FlowFabric(url, token=token, settings=SETTINGS)


def declare(fabric: FlowFabric, kind: str) -> None:
    @fabric.task(name=kind)
    async def work(number: int) -> str:
        await asyncio.sleep(0.001)
        os.write(1, b"worked\n")
        return f"{kind} {number}"


async def main(url: str, release: str) -> None:
    fabric = fabric_at(url)
    for kind in RELEASES[release]:
        declare(fabric, kind)
    async with fabric:
        await fabric.worker(lease="1s", concurrency=8).run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
