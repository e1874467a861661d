"""Lanes, the workers that serve them, and leases that have ended."""

from typing import Annotated

import msgspec

from flowfabric.errors import Unavailable
from flowfabric.operations.declaration import ADMIN, READ, operation
from flowfabric.operations.types import VISIBLE, Answer, LaneName, Limit, Namespace, Page, one_of

LaneState = Annotated[str, one_of("active", "paused", "draining", "disabled")]
LaneShards = Annotated[int, msgspec.Meta(description="1 to 256")]
Instant = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]


class LaneInfo(Answer, frozen=True, kw_only=True):
    namespace: str
    lane_id: str
    state: str
    lane_shards: int


class Queue(Answer, frozen=True, kw_only=True):
    """How many executions of a kind wait for workers that meet one requirement set, and how long
    the first one has waited."""

    requirement_set: str
    kind: str
    capabilities: tuple[str, ...]
    depth: int
    oldest_waiting_ms: int


class LaneQueues(Answer, frozen=True, kw_only=True):
    state: str
    queues: tuple[Queue, ...]


class WorkerEntry(Answer, frozen=True, kw_only=True):
    worker_id: str
    worker_instance_id: str
    namespace: str
    lanes: tuple[str, ...]
    capabilities: tuple[str, ...]
    # None when the worker runs every kind.
    kinds: tuple[str, ...] | None = None
    last_heartbeat_ms: int
    liveness_ttl_ms: int
    registered_at_ms: int


class ExpiredLease(Answer, frozen=True, kw_only=True):
    """A lease that ran out or was taken, and whose it was."""

    execution_id: str
    lease_id: str
    lease_epoch: int
    worker_instance_id: str
    expires_at_ms: int
    attempt_index: int


class Lanes:
    @operation("GET /v1/lanes", READ)
    async def list_lanes(
        self,
        namespace: Namespace = "default",
        cursor: str = "",
        limit: Limit = 50,
    ) -> Page[LaneInfo]:
        """The lanes of a namespace by name."""

    @operation("PUT /v1/lanes/{lane}", ADMIN, audit="lane_changed")
    async def set_lane(
        self,
        lane: LaneName,
        namespace: Namespace = "default",
        *,
        state: LaneState | None = None,
        lane_shards: LaneShards | None = None,
    ) -> LaneInfo:
        """Change a lane; what is not given stays. It takes effect in every process within a
        second."""

    @operation("GET /v1/lanes/{lane}/queues", READ)
    async def lane_queues(self, lane: LaneName, namespace: Namespace = "default") -> LaneQueues:
        """The state of a lane, and what waits in it by requirement set and kind."""

    @operation("GET /v1/workers", READ, Unavailable)
    async def list_workers(
        self,
        namespace: Annotated[Namespace, msgspec.Meta(min_length=1)] = "default",
        after: str = "",
        limit: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 1000,
    ) -> Page[WorkerEntry]:
        """Live workers of a namespace in the order of their instances, after `after`."""

    @operation("GET /v1/leases/expired", READ, owner=VISIBLE)
    async def list_expired_leases(
        self,
        namespace: Namespace = "default",
        as_of: Instant | None = None,
        cursor: str = "",
        limit: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1000,
    ) -> Page[ExpiredLease]:
        """Leases that ran out, marked or not, or were taken, and ended up to `as_of` (now, if it is
        not given), the oldest end first. An empty namespace stands for all of them."""
