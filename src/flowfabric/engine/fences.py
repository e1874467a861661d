"""Who acts on an attempt: a lease holder with its fence, or an operator without one."""

from flowfabric.core.checks import check_override
from flowfabric.core.fence import Fence, fence_from
from flowfabric.core.ids import parse_execution_id
from flowfabric.engine.deps import Deps
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import FenceRequired, PartialFenceTriple


async def given_fence(deps: Deps, proof: LeaseProof) -> Fence | None:
    """The caller's fence, None when it gave none. A missing execution comes before half a fence."""
    if (fence := proof.fence) is not None:
        return fence
    parse_execution_id(proof.execution_id, deps.counts)
    try:
        return fence_from(proof.lease_id, proof.lease_epoch, proof.attempt_id)
    except PartialFenceTriple:
        await deps.record(proof.execution_id)
        raise


async def fence_of(deps: Deps, proof: LeaseProof, *, may_override: bool) -> Fence:
    """The fence to act under. A missing execution is reported before a missing fence."""
    fence = await given_fence(deps, proof)
    if fence is not None:
        return fence
    record, now = await deps.record(proof.execution_id)
    if may_override and proof.source == "operator_override":
        return check_override(record, now)
    raise FenceRequired(f"{proof.execution_id}: this call needs the lease's fence")
