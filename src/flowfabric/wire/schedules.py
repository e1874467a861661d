"""Schedules: what is submitted again and again, and when."""

from typing import Annotated, Any

import msgspec

from flowfabric.operations.types import Answer, Body, Params, Timestamp, one_of
from flowfabric.wire.executions import Policy
from flowfabric.wire.scalars import Bytes

Overlap = Annotated[str, one_of("allow", "skip")]
CatchUp = Annotated[str, one_of("latest", "all", "none")]


class PutSchedule(Body, frozen=True, kw_only=True):
    """Exactly one of `every_ms` and `cron` is given. Without `paused` it stays as it is."""

    kind: str
    lane: str = "default"
    namespace: str = "default"
    payload: Bytes = b""
    payload_encoding: str = ""
    policy: Policy | msgspec.UnsetType = msgspec.UNSET
    tags: dict[str, str] | None = None
    priority: int | None = None
    every_ms: int | None = None
    cron: str | None = None
    tz: str = "UTC"
    start_at: Timestamp | None = None
    end_at: Timestamp | None = None
    paused: bool | None = None
    overlap: Overlap = "allow"
    catch_up: CatchUp = "latest"
    schedule_id: str | None = None


class Schedule(Answer, frozen=True, kw_only=True):
    schedule_id: str
    namespace: str
    kind: str
    lane: str
    payload: bytes
    payload_encoding: str
    policy: dict[str, Any] | None
    tags: dict[str, str]
    priority: int | None
    every_ms: int | None
    cron: str | None
    tz: str
    start_at: int | None
    end_at: int | None
    paused: bool
    overlap: Overlap
    catch_up: CatchUp
    # Null when no time is left.
    next_at: int | None
    last_fired_at: int | None
    last_execution_id: str | None
    created_at: int
    changed_at: int


class SchedulesQuery(Params, frozen=True, kw_only=True):
    namespace: str = ""
    cursor: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 50


class Schedules(Answer, frozen=True, kw_only=True):
    schedules: list[Schedule]
    next_cursor: str | None


class Triggered(Answer, frozen=True, kw_only=True):
    execution_id: str


class Backfill(Body, frozen=True, kw_only=True, rename={"first": "from", "last": "to"}):
    """Both ends are included."""

    first: Timestamp
    last: Timestamp


class Backfilled(Answer, frozen=True, kw_only=True):
    execution_ids: list[str]
