"""A worker process for the agent example. Run as `python -m tests.chaos.agent_worker URL NOTES`.

Its model says where each word comes from, and every call of it leaves a line in the notes. The
process prints a line at every word and at both ends of every call of its port: a place to kill it.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

from examples.agent import THOUGHTS, Model, declare
from flowfabric import FlowFabric
from flowfabric.errors import FlowFabricError
from tests.chaos.program import SETTINGS, note
from tests.serving import TOKEN


def noting_model(notes: Path) -> Model:
    async def say(goal: str, topic: str) -> AsyncIterator[str]:
        call = uuid4().hex
        note(notes, f"{goal} {topic} {call}")
        for place, _ in enumerate(THOUGHTS[topic].split()):
            os.write(1, b"word\n")
            await asyncio.sleep(0)
            yield f"{topic}/{call}/{place}"

    return say


class Telling:
    """Says when a call of the port begins and ends."""

    def before(self, method: str) -> FlowFabricError | None:
        os.write(1, f"before {method}\n".encode())
        return None

    def after(self, method: str, elapsed_s: float, fault: BaseException | None) -> None:
        os.write(1, f"after {method}\n".encode())


def fabric_at(url: str, *, duties: bool = True) -> FlowFabric:
    token = TOKEN if url.startswith("http") else None
    return FlowFabric(url, token=token, settings=SETTINGS, duties=duties)


async def main(url: str, notes: str) -> None:
    async with fabric_at(url) as fabric:
        declare(fabric, noting_model(Path(notes)))
        fabric.layer(Telling())
        await fabric.worker(lease="1s", concurrency=4).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
