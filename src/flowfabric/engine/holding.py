"""Who acts on an attempt: a lease holder with its fence, or an operator without one."""

from flowfabric.core.checks import check_override
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.plan import Fence, fence_from
from flowfabric.engine.deps import Deps
from flowfabric.engine.leased import Held
from flowfabric.errors import FenceRequired, PartialFenceTriple


async def given_fence(deps: Deps, held: Held) -> Fence | None:
    """The caller's fence, None when it gave none. A missing execution comes before half a fence."""
    if (fence := held.fence) is not None:
        return fence
    parse_execution_id(held.execution_id, deps.counts)
    try:
        return fence_from(held.lease_id, held.lease_epoch, held.attempt_id)
    except PartialFenceTriple:
        await deps.record(held.execution_id)
        raise


async def fence_of(deps: Deps, held: Held, *, may_override: bool) -> Fence:
    """The fence to act under. A missing execution is reported before a missing fence."""
    fence = await given_fence(deps, held)
    if fence is not None:
        return fence
    record, now = await deps.record(held.execution_id)
    if may_override and held.source == "operator_override":
        return check_override(record, now)
    raise FenceRequired(f"{held.execution_id}: this call needs the lease's fence")
