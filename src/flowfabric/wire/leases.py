"""Who holds an execution, and leases that have ended."""

from typing import Annotated

import msgspec

from flowfabric.operations.types import Answer, Params


class CurrentAttempt(Answer, frozen=True, kw_only=True):
    attempt_id: str
    attempt_index: int


class CurrentLease(Answer, frozen=True, kw_only=True):
    lease_id: str
    lease_epoch: int
    worker_instance_id: str
    expires_at: int
    attempt_index: int
    last_heartbeat_at: int | None = None


class ExpiredLeasesQuery(Params, frozen=True, kw_only=True):
    """Leases that ended up to `as_of`, or up to now."""

    namespace: str = "default"
    as_of: Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)] | msgspec.UnsetType = msgspec.UNSET
    cursor: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1_000


class ExpiredLease(Answer, frozen=True, kw_only=True):
    execution_id: str
    lease_id: str
    lease_epoch: int
    worker_instance_id: str
    expires_at_ms: int
    attempt_index: int


class ExpiredLeases(Answer, frozen=True, kw_only=True):
    leases: list[ExpiredLease]
    next_cursor: str | None
