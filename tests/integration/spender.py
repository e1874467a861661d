"""The other process of the test about limits: spends, holds and runs what it gets, and tells."""

import asyncio
import sys
from pathlib import Path

from flowfabric.app import open_engine
from flowfabric.config import Settings, StoreUrl
from flowfabric.engine import Engine
from flowfabric.operations.budgets import NewReservation, Reserved
from flowfabric.operations.workers import ClaimOrder

REPORTS = 60
RESERVATIONS = 15


async def spend(engine: Engine, budget_id: str, name: str) -> int:
    """Report and hold from many tasks at once; how much was accepted."""

    async def report(number: int) -> int:
        amount = 1 + number % 3
        answer = await engine.budgets.report_usage(budget_id, {"t": amount}, f"{name}-{number}")
        return amount if answer.outcome == "ok" else 0

    async def hold(number: int) -> int:
        asked = NewReservation(
            reservation_id=f"{name}-{number}", dimensions={"t": 4}, ttl_ms=60_000
        )
        if not isinstance(await engine.reservations.reserve(budget_id, asked), Reserved):
            return 0
        answer = await engine.reservations.commit(budget_id, f"{name}-{number}", {"t": 3})
        return 3 if answer.outcome == "ok" else 0

    reports = [report(number) for number in range(REPORTS)]
    holds = [hold(number) for number in range(RESERVATIONS)]
    return sum(await asyncio.gather(*reports, *holds))


async def run_exclusively(engine: Engine, name: str, running: Path) -> int:
    """Run work of a key of which one at a time may run, until there is none; how much it was."""
    done = 0
    order = ClaimOrder(worker_id="w", worker_instance_id=name, lanes=("default",), wait_ms=1_500)
    while claimed := await engine.claims.claim(order):
        for one in claimed:
            # Fails if anybody else's exists: two would be running at once.
            running.touch(exist_ok=False)
            await engine.leases.progress(one.proof, 50)
            running.unlink()
            await engine.outcomes.complete(one.proof)
            done += 1
    return done


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def main(path: Path, budget_id: str) -> None:
    engine = await open_engine(Settings(store=StoreUrl("sqlite", str(path))))
    try:
        say("ready")
        sys.stdin.readline()
        spent = await spend(engine, budget_id, "child")
        done = await run_exclusively(engine, "child", path.with_suffix(".running"))
        say(f"{spent} {done}")
    finally:
        await engine.close()
        await engine.deps.store.backend.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
