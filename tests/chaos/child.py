"""The processes chaos tests kill. Every line printed is something the engine acknowledged."""

import asyncio
import sys

from flowfabric.app import open_engine
from flowfabric.config import Settings, parse_store_url
from flowfabric.core.tokens import Secret
from flowfabric.engine import Engine
from flowfabric.errors import FlowFabricError
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder


def say(*words: str) -> None:
    # One write per line, so that a killed process never leaves half a line that looks whole.
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def order_of(name: str, lease_ms: int = 30_000) -> ClaimOrder:
    return ClaimOrder(
        worker_id="chaos",
        worker_instance_id=name,
        lanes=("default",),
        n=4,
        lease_ms=lease_ms,
        wait_ms=2_000,
    )


async def hold(engine: Engine, name: str) -> None:
    """Claim and never come back."""
    for claimed in await engine.claims.claim(order_of(name, lease_ms=1_000)):
        say("held", claimed.execution_id, str(claimed.record.lease_epoch))
    await asyncio.Event().wait()


async def churn(engine: Engine, name: str) -> None:
    """Submit and complete as fast as it goes, from several tasks at once."""
    await asyncio.gather(*(_submit(engine, f"{name}-{n}") for n in range(4)), _drain(engine, name))


async def _submit(engine: Engine, name: str) -> None:
    number = 0
    while True:
        number += 1
        key = f"{name}-{number}"
        submission = Submission(kind="chaos", input=key.encode(), idempotency_key=key)
        done = await engine.executions.create(submission)
        say("created", done.execution_id, key)


async def _drain(engine: Engine, name: str) -> None:
    while True:
        for claimed in await engine.claims.claim(order_of(name)):
            say("claimed", claimed.execution_id, str(claimed.record.lease_epoch))
            try:
                await engine.outcomes.complete(claimed.proof, b"by " + name.encode())
            except FlowFabricError as refusal:
                say("refused", claimed.execution_id, refusal.code)
            else:
                say("completed", claimed.execution_id, name)


async def drain(engine: Engine, name: str) -> None:
    """Complete whatever is there, until nothing has come for a while."""
    order = order_of(name)
    while batch := await engine.claims.claim(order):
        for claimed in batch:
            say("claimed", claimed.execution_id, str(claimed.record.lease_epoch))
            await engine.outcomes.complete(claimed.proof, b"by " + name.encode())
            say("completed", claimed.execution_id, name)


ROLES = {"hold": hold, "churn": churn, "drain": drain}


async def open_store(url: str) -> Engine:
    store = parse_store_url(url)
    return await open_engine(Settings(store=store, waitpoint_secret=Secret("5e" * 32)))


async def main(role: str, url: str, name: str) -> None:
    engine = await open_store(url)
    say("ready")
    await ROLES[role](engine, name)
    await engine.close()
    await engine.deps.store.backend.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
