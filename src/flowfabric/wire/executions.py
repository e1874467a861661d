"""Executions: create, read, list, and act on one."""

from typing import Annotated, Literal

import msgspec

from flowfabric.operations.types import Answer, Body, Params
from flowfabric.wire.errors import RawItem
from flowfabric.wire.scalars import Tagged

# Kept as it came: the engine reads policies itself, and remembers those it has read.
Policy = Annotated[
    msgspec.Raw,
    msgspec.Meta(extra_json_schema={"$ref": "#/components/schemas/ExecutionPolicy"}),
]

MOST_BATCHED = 200


# ---- create


class CreateAnswers(Answer, frozen=True, kw_only=True):
    """Per item the outcome of a submit."""

    items: list[RawItem]


# ---- read one


class ExecutionContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a handler is given to work on."""

    input_payload: bytes
    execution_kind: str
    tags: dict[str, str]


class Attempt(Answer, frozen=True, kw_only=True):
    attempt_index: int
    attempt_id: str
    attempt_type: str
    state: str
    created_at: int | None = None
    started_at: int | None = None
    ended_at: int | None = None
    lease_id: str | None = None
    lease_epoch: int | None = None
    worker_id: str | None = None
    worker_instance_id: str | None = None
    failure_reason: str | None = None
    failure_category: str | None = None
    previous_attempt: int | None = None
    lineage_reason: str | None = None
    lineage_requester: str | None = None
    suspended_at: int | None = None
    suspension_id: str | None = None
    resumed_at: int | None = None
    closed_at: int | None = None
    closed_reason: str | None = None


class Attempts(Answer, frozen=True, kw_only=True):
    attempts: list[Attempt]


class HistoryEvent(Answer, frozen=True, kw_only=True):
    event: str
    ts: int
    fields: dict[str, str]


class History(Answer, frozen=True, kw_only=True):
    events: list[HistoryEvent]
    next_cursor: str | None


class HistoryQuery(Params, frozen=True, kw_only=True):
    cursor: str = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1000


class Upstream(Answer, frozen=True, kw_only=True):
    edge_id: str
    execution_id: str
    data_ref: str | None = msgspec.field(default=None, name="data_passing_ref")
    outcome: str | None = None
    satisfied_at: int | None = None
    result: bytes | None = None
    result_encoding: str | None = None
    result_deferred: bool = False


class Upstreams(Answer, frozen=True, kw_only=True):
    upstreams: list[Upstream]


class UpstreamsQuery(Params, frozen=True, kw_only=True):
    results: bool = False


class JournalEntry(Answer, frozen=True, kw_only=True):
    name: str
    seq: int
    digest: str
    outcome: bytes


class Journal(Answer, frozen=True, kw_only=True):
    entries: list[JournalEntry]
    next_cursor: int | None


class JournalQuery(Params, frozen=True, kw_only=True):
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 100


class WaitQuery(Params, frozen=True, kw_only=True):
    wait_ms: Annotated[int, msgspec.Meta(ge=0, le=30_000)] = 0


class ResumeSignalsQuery(Params, frozen=True, kw_only=True):
    attempt_index: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] | None = None


# ---- search, list, count

Order = Literal["created_desc", "created_asc", "priority"]


class SearchQuery(Params, frozen=True, kw_only=True):
    """One query for the three listings: a partition's ids, a lane's view, or a search."""

    namespace: str = ""
    state: tuple[str, ...] = ()
    lane: str = ""
    kind: str = ""
    flow_id: str = ""
    worker: str = ""
    tag: tuple[str, ...] = ()
    created_after: Annotated[int, msgspec.Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET
    created_before: Annotated[int, msgspec.Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET
    order: Order = "created_desc"
    limit: Annotated[int, msgspec.Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET
    cursor: str = ""
    partition: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | msgspec.UnsetType = msgspec.UNSET
    offset: Annotated[int, msgspec.Meta(ge=0)] | msgspec.UnsetType = msgspec.UNSET


class ExecutionIds(Answer, frozen=True, kw_only=True):
    executions: list[str]
    next_cursor: str | None


class ListedExecution(Answer, frozen=True, kw_only=True):
    execution_id: str
    namespace: str
    lane_id: str
    execution_kind: str
    public_state: str
    priority: int
    created_at: int


class Listed(Answer, frozen=True, kw_only=True):
    executions: list[ListedExecution]
    total_returned: int


class CountQuery(Params, frozen=True, kw_only=True):
    namespace: str = "default"
    lane: str = ""


class Counts(Answer, frozen=True, kw_only=True):
    counts: dict[str, int]


# ---- act on one


class Replay(Body, frozen=True, kw_only=True):
    execution_id: str | None = None
    reason: str = ""
    requested_by: str = ""


class PublicState(Answer, frozen=True, kw_only=True):
    public_state: str


class ReplayAnswer(Tagged, frozen=True, kw_only=True):
    replayed: PublicState


class SetTags(Body, frozen=True, kw_only=True):
    tags: dict[str, str]
    execution_id: str | None = None


class TagCount(Answer, frozen=True, kw_only=True):
    count: int


class TagsAnswer(Tagged, frozen=True, kw_only=True):
    updated: TagCount


class Resume(Body, frozen=True, kw_only=True):
    execution_id: str | None = None
    trigger_type: str = "operator"
    resume_delay_ms: int | None = None


class ResumeAnswer(Tagged, frozen=True, kw_only=True):
    resumed: PublicState


class Revoked(Answer, frozen=True, kw_only=True):
    """Texts both, as leases are shown to people."""

    lease_id: str
    lease_epoch: str


class Reason(Answer, frozen=True, kw_only=True):
    reason: str


class RevokeAnswer(Tagged, frozen=True, kw_only=True):
    revoked: Revoked | None = None
    already_satisfied: Reason | None = None


class Reclaim(Body, frozen=True, kw_only=True):
    worker_id: str
    worker_instance_id: str
    lane_id: str
    grant_ttl_ms: int
    execution_id: str | None = None
    worker_capabilities: tuple[str, ...] = ()
    capability_hash: str = ""
    route_snapshot_json: str = ""
    admission_summary: str = ""


class Granted(Answer, frozen=True, kw_only=True, tag_field="status", tag="granted"):
    execution_id: str
    partition_key: str
    grant_key: str
    expires_at_ms: int
    lane_id: str


class NotReclaimable(Answer, frozen=True, kw_only=True, tag_field="status", tag="not_reclaimable"):
    execution_id: str
    detail: str


class ReclaimCapExceeded(
    Answer, frozen=True, kw_only=True, tag_field="status", tag="reclaim_cap_exceeded"
):
    execution_id: str
    reclaim_count: int


ReclaimAnswer = Granted | NotReclaimable | ReclaimCapExceeded
