"""A worker process to be frozen. Run as `python -m tests.chaos.frozen_worker URL NOTES`.

Its handlers stop the whole process until a line comes in, so that nothing else of the worker runs
between the moment it is thawed and the handler's next move. The line says how many seconds it was
frozen for by the clock it looks at. Whatever a handler does leaves a line in the notes; what the
worker logs is printed.
"""

import asyncio
import logging
import os
import sys
import time
from pathlib import Path

import msgspec

from flowfabric import Context, FlowFabric
from tests.chaos.agent_worker import fabric_at
from tests.chaos.program import note

# Longer than any stall of a busy machine: it ends when the test says so.
LEASE_S = 60

_slept: list[float] = []


def monotonic() -> float:
    return time.monotonic() + sum(_slept)


def declared(fabric: FlowFabric, notes: Path, who: str) -> FlowFabric:
    def wait() -> None:
        if who == "victim":
            os.write(1, b"frozen\n")
            _slept.append(float(sys.stdin.readline()))

    @fabric.task
    async def returning(number: int) -> str:
        note(notes, f"{who} began {number}")
        wait()
        return who

    @fabric.task
    async def paying(ctx: Context, number: int) -> str:
        note(notes, f"{who} began {number}")
        wait()
        return await ctx.step("pay", pay, number)

    async def pay(number: int) -> str:
        note(notes, f"{who} paid {number}")
        return who

    return fabric


class Printed(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        os.write(1, f"log {record.getMessage()}\n".encode())


async def main(url: str, notes: str) -> None:
    logging.basicConfig(level=logging.INFO, handlers=[Printed()])
    async with fabric_at(url, duties=False) as fabric:
        declared(fabric, Path(notes), "victim")
        worker = fabric.worker(lease=LEASE_S, concurrency=1, prefetch=1)
        worker.options = msgspec.structs.replace(worker.options, monotonic=monotonic)
        await worker.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
