"""Who may write beside a record without writing the record: its live lease holder, nobody else."""

from flowfabric.core.plan import Fence
from flowfabric.core.record import Record


def is_held(record: Record, fence: Fence, now: int) -> bool:
    """Whether this is the fence of the record's lease, and the lease still runs."""
    return (
        record.state == "active"
        and record.lease_id == fence.lease_id
        and record.lease_epoch == fence.lease_epoch
        and record.attempt_id == fence.attempt_id
        and record.lease_until > now
    )
