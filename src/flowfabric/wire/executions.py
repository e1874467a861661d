"""Executions: create, read, list, and act on one."""

from typing import Annotated, Literal

import msgspec

from flowfabric.core.facets import Facets
from flowfabric.wire.errors import Item
from flowfabric.wire.leases import CurrentAttempt, CurrentLease
from flowfabric.wire.scalars import (
    Answer,
    Body,
    Bytes,
    ExecutionId,
    Params,
    Tagged,
    Timestamp,
    Uuid,
)

# Kept as it came: the engine reads policies itself, and remembers those it has read.
Policy = Annotated[
    msgspec.Raw,
    msgspec.Meta(extra_json_schema={"$ref": "#/components/schemas/ExecutionPolicy"}),
]

MOST_BATCHED = 200


# ---- create


class CreateExecution(Body, frozen=True, kw_only=True):
    lane_id: str
    execution_kind: str
    execution_id: ExecutionId | None = None
    namespace: str = "default"
    input_payload: Bytes = b""
    payload_encoding: str = ""
    priority: int | None = None
    creator_identity: str = ""
    flow_id: Uuid | None = None
    idempotency_key: str = ""
    tags: dict[str, str] | None = None
    policy: Policy | msgspec.UnsetType = msgspec.UNSET
    delay_until: Timestamp | None = None
    execution_deadline_at: Timestamp | None = None
    partition_id: int | None = None


class CreateExecutions(Body, frozen=True, kw_only=True):
    executions: Annotated[
        list[CreateExecution], msgspec.Meta(min_length=1, max_length=MOST_BATCHED)
    ]


class Created(Answer, frozen=True, kw_only=True):
    execution_id: str
    public_state: str


class Duplicate(Answer, frozen=True, kw_only=True):
    execution_id: str


class CreateAnswer(Tagged, frozen=True, kw_only=True):
    created: Created | None = None
    duplicate: Duplicate | None = None


class CreateAnswers(Answer, frozen=True, kw_only=True):
    items: list[Item[CreateAnswer]]


# ---- read one


class Execution(Answer, frozen=True, kw_only=True):
    """Instants are texts here, and absent until they have happened."""

    execution_id: str
    namespace: str
    lane_id: str
    priority: int
    execution_kind: str
    state_vector: Facets
    public_state: str
    created_at: str
    started_at: str | None = None
    completed_at: str | None = None
    current_attempt_index: int
    flow_id: str | None
    blocking_detail: str
    # How it ended, or failed last; absent when there is nothing to tell.
    result_encoding: str | None = None
    failure_reason: str | None = None
    failure_category: str | None = None
    cancellation_reason: str | None = None
    # Who has it now; absent while nobody has.
    current_attempt: CurrentAttempt | None = None
    current_lease: CurrentLease | None = None
    current_waitpoint: str | None = None
    progress_pct: int | None = None
    progress_message: str | None = None
    total_attempt_count: int = 0
    last_mutation_at: str | None = None
    tags: dict[str, str] = msgspec.field(default_factory=dict)


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


class FoundExecution(Answer, frozen=True, kw_only=True):
    execution_id: str
    namespace: str
    lane_id: str
    execution_kind: str
    flow_id: str | None = None
    public_state: str
    blocking_reason: str
    priority: int
    attempt_count: int
    created_at: int
    started_at: int | None = None
    completed_at: int | None = None
    tags: dict[str, str]


class Found(Answer, frozen=True, kw_only=True):
    items: list[FoundExecution]
    next_cursor: str | None
    scanned: int


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


class Cancel(Body, frozen=True, kw_only=True):
    reason: str
    source: str = "operator_override"
    execution_id: str | None = None
    lease_id: str = ""
    lease_epoch: int = 0
    attempt_id: str = ""


class Cancelled(Answer, frozen=True, kw_only=True):
    execution_id: str
    public_state: str


class CancelAnswer(Tagged, frozen=True, kw_only=True):
    cancelled: Cancelled


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


class SetPriority(Body, frozen=True, kw_only=True):
    new_priority: int
    execution_id: str | None = None


class Changed(Answer, frozen=True, kw_only=True):
    execution_id: str


class PriorityAnswer(Tagged, frozen=True, kw_only=True):
    changed: Changed


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
