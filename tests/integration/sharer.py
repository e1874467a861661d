"""One of several processes that share flows, a lane, a tree of budgets and a gate on Postgres.

Run as `python -m tests.integration.sharer URL NAME RUNNING BUDGETS [WITHOUT]`; it begins when it
reads a line. WITHOUT names a table whose rows this process does not lock.
"""

import asyncio
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flowfabric.app import open_engine
from flowfabric.backend.postgres.connection import Connection
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.tokens import Secret
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.errors import FlowFabricError
from flowfabric.operations.workers import ClaimOrder
from tests.conformance.limiting import report

REPORTS = 40
CALLERS = 3
GATED = "gated"
MOST_AT_ONCE = 2
_LOCK = re.compile(r" FOR UPDATE( OF \w+)?( SKIP LOCKED)?")


def settings_for(url: str) -> Settings:
    return Settings(store=parse_store_url(url), waitpoint_secret=Secret("5e" * 32))


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def take_no_locks_of(table: str) -> None:
    """Read the rows of a table as others may be changing them."""
    send, reads = Connection._send, re.compile(rf"\b(FROM|JOIN) {table}\b")

    def unlocked(self: Connection, statement: str, values: Sequence[Any]) -> list[str]:
        return send(
            self, _LOCK.sub("", statement) if reads.search(statement) else statement, values
        )

    Connection._send = unlocked  # type: ignore[method-assign]


class Sharer:
    def __init__(self, engine: Engine, name: str, running: Path) -> None:
        self._engine = engine
        self._name = name
        self._running = running
        self._sweep = TimerSweep(engine)

    async def spend(self, budgets: list[str]) -> None:
        """In turns, so that the processes are at it at the same time."""
        for number in range(REPORTS):
            await report(self._engine, budgets[number % len(budgets)], usd=1)

    async def work(self, caller: int) -> None:
        """Complete what comes, until nothing has come for a while."""
        order = ClaimOrder(
            worker_id="sharer",
            worker_instance_id=f"{self._name}-{caller}",
            lanes=("default",),
            n=4,
            wait_ms=1_000,
        )
        idle = 0
        while idle < 2:
            claimed = await self._engine.claims.claim(order)
            idle = 0 if claimed else idle + 1
            for one in claimed:
                await self._complete(one)
            if not claimed:
                await self._sweep.visit()

    async def _complete(self, one: Claimed) -> None:
        if one.record.kind == GATED:
            mark = self._running / one.execution_id
            mark.touch(exist_ok=False)
            say("beside", str(len(list(self._running.iterdir()))))
            await self._engine.leases.progress(one.proof, 50)
            mark.unlink()
        await self._engine.outcomes.complete(one.proof, b"done")
        say("done", one.execution_id)


async def main(url: str, name: str, running: str, budgets: str, without: str = "") -> None:
    if without:
        take_no_locks_of(without)
    engine = await open_engine(settings_for(url))
    sharer = Sharer(engine, name, Path(running))
    say("ready")
    await asyncio.to_thread(sys.stdin.readline)
    try:
        await asyncio.gather(
            sharer.spend(budgets.split(",")), *(sharer.work(caller) for caller in range(CALLERS))
        )
    except FlowFabricError as fault:
        say("failed", fault.code)
    await engine.close()
    await engine.deps.store.backend.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
