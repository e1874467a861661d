"""Output of attempts, and the feeds of events."""

from typing import Annotated, Any, Literal

import msgspec

from flowfabric.operations.types import Answer, Params

Visibility = Literal["all", "exclude_best_effort"]


class RangeQuery(Params, frozen=True, kw_only=True, rename={"start": "from", "end": "to"}):
    start: str = "start"
    end: str = "end"
    limit: int = 100
    visibility: Visibility = "all"


class TailQuery(Params, frozen=True, kw_only=True):
    after: str = "0-0"
    block_ms: int = 0
    limit: int = 50
    visibility: Visibility = "all"


class SseQuery(Params, frozen=True, kw_only=True):
    after: str = ""
    visibility: Visibility = "all"
    summary: bool = False


class FrameFields(Answer, frozen=True, kw_only=True):
    """Keys are in order of the alphabet, as they are shown."""

    correlation_id: str | None = None
    encoding: str
    frame_type: str
    mode: str
    payload: bytes
    source: str
    summary_version: int | None = None
    ts: int
    ttl_ms: int | None = None


class Frame(Answer, frozen=True, kw_only=True):
    id: str
    fields: FrameFields


class Frames(Answer, frozen=True, kw_only=True):
    frames: list[Frame]
    count: int
    next_after: str
    closed_at: int | None = None
    closed_reason: str | None = None


class Summary(Answer, frozen=True, kw_only=True):
    document: Any
    version: int
    patch_kind: str
    last_updated_ms: int
    first_applied_ms: int


class AttemptEvent(Answer, frozen=True, kw_only=True):
    attempt_index: int
    attempt_type: str


class ClosedEvent(Answer, frozen=True, kw_only=True):
    closed_at: int
    closed_reason: str


class EventsQuery(Params, frozen=True, kw_only=True):
    families: str = ""
    namespace: str = ""
    tag: str = ""
    cursor: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=30_000)] = 0


class Event(Answer, frozen=True, kw_only=True):
    """Something that happened; which members are set depends on the family."""

    cursor: str
    family: Literal["completion", "lease", "signal", "operator", "flow", "backpressure"]
    at: int | None = None
    execution_id: str | None = None
    flow_id: str | None = None
    outcome: str | None = None
    kind: str | None = None
    lease_id: str | None = None
    worker_instance_id: str | None = None
    reason: str | None = None
    prev_owner: str | None = None
    new_lease_id: str | None = None
    new_owner: str | None = None
    revoked_by: str | None = None
    replay_count: int | None = None
    replay_type: str | None = None
    signal_id: str | None = None
    waitpoint_id: str | None = None
    source_identity: str | None = None
    effect: str | None = None
    event_type: str | None = None
    details: dict[str, str] | None = None
    event: str | None = None
    state: str | None = None


class Events(Answer, frozen=True, kw_only=True):
    events: list[Event]
    next_cursor: str
