"""Who acts on an attempt: a lease holder with its fence, or an operator without one."""

import msgspec

from flowfabric.core.checks import check_override
from flowfabric.core.fence import Fence, fence_from
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.record import Record
from flowfabric.engine.deps import Deps
from flowfabric.errors import FenceRequired, PartialFenceTriple


class Held(msgspec.Struct, frozen=True, gc=False):
    """The execution an attempt-bound call is about, and the proof that it may be made.

    `record` is what the caller knows from its claim; with it no decision needs to read first.
    """

    execution_id: str
    lease_id: str = ""
    lease_epoch: int = 0
    attempt_id: str = ""
    source: str = ""
    record: Record | None = None

    @property
    def fence(self) -> Fence | None:
        """The fence a claim gave, which needs no check."""
        if self.record is None:
            return None
        return Fence(self.lease_id, self.lease_epoch, self.attempt_id)


def held_by(record: Record) -> Held:
    """The holding a claim gave, from the record it answered."""
    return Held(
        record.execution_id,
        record.lease_id,
        record.lease_epoch,
        record.attempt_id,
        record=record,
    )


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
