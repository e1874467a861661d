"""The calls of a worker on a store, and its requests under a lease."""

from typing import Any

from flowfabric.engine import Engine
from flowfabric.engine.lease_proof import Fenced
from flowfabric.operations.attempts import HeldAttempts
from flowfabric.operations.declaration import AsyncCalls
from flowfabric.operations.workers import (
    Claim,
    ClaimOrder,
    Complete,
    Ending,
    Finish,
    Renewal,
    Workers,
)

WORKER: dict[str, Any] = {
    "worker_id": "pool",
    "worker_instance_id": "pool-1",
    "lanes": ("default",),
}


class Calls(AsyncCalls, Workers, HeldAttempts):
    pass


def calls_on(engine: Engine) -> Calls:
    return Calls(engine.use_case)


def fence(claim: Claim) -> dict[str, Any]:
    names = ("execution_id", "lease_id", "lease_epoch", "attempt_id")
    return {name: getattr(claim, name) for name in names}


def finish(claim: Claim, outcome: Ending | None = None, op: str = "op", **changes: Any) -> Finish:
    return Finish(**(fence(claim) | changes), op=op, outcome=outcome or Complete())


def renewal(proof: Fenced) -> Renewal:
    """A lease to keep, as its holder would name it from another process."""
    return Renewal(
        execution_id=proof.execution_id,
        lease_id=proof.lease_id,
        lease_epoch=proof.lease_epoch,
        attempt_id=proof.attempt_id,
    )


async def claimed(engine: Engine, **fields: Any) -> Claim:
    """The one execution that waits."""
    reply = await calls_on(engine).claim(ClaimOrder(**(WORKER | fields)))
    assert reply is not None
    (claim,) = reply.items
    return claim
