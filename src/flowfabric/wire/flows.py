"""Flows: submit a graph, build one, cancel, read, replay."""

from typing import Annotated, Any, Literal

import msgspec

from flowfabric.core.edge_policies import EdgePolicy
from flowfabric.operations.errors import ErrorBody
from flowfabric.operations.types import Answer, Body, ExecutionId, Params, Part, Timestamp
from flowfabric.wire.executions import Policy, TagCount
from flowfabric.wire.scalars import Bytes, Tagged, Uuid

DEFAULT_KIND = "success_only"
# Told apart by `kind`, and read by the engine, which says what is wrong with one.
RawEdgePolicy = Annotated[
    dict[str, Any],
    msgspec.Meta(description="all_of; any_of or quorum with on_satisfied, the latter with k"),
]


# ---- submit


class Node(Part, frozen=True, kw_only=True):
    name: str
    lane_id: str
    execution_kind: str
    execution_id: ExecutionId | None = None
    input_payload: Bytes = b""
    payload_encoding: str = ""
    priority: int | None = None
    policy: Policy | msgspec.UnsetType = msgspec.UNSET
    tags: dict[str, str] | None = None
    delay_until: Timestamp | None = None
    execution_deadline_at: Timestamp | None = None


class Arrow(Part, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """`to` waits for `from`; both are names of nodes."""

    source: str
    target: str
    edge_id: Uuid | None = None
    dependency_kind: str = DEFAULT_KIND
    data_passing_ref: str = ""


class Combine(Part, frozen=True, kw_only=True, rename={"target": "to"}):
    """How the inbound edges of one node combine."""

    target: str
    policy: RawEdgePolicy


class SubmitFlow(Body, frozen=True, kw_only=True):
    flow_kind: str
    nodes: list[Node]
    edges: tuple[Arrow, ...] = ()
    groups: tuple[Combine, ...] = ()
    namespace: str = "default"
    flow_id: Uuid | None = None
    idempotency_key: str = ""
    tags: dict[str, str] | None = None


class SubmittedFlow(Answer, frozen=True, kw_only=True):
    flow_id: str
    graph_revision: int
    executions: dict[str, str]


class SubmitAnswer(Tagged, frozen=True, kw_only=True):
    submitted: SubmittedFlow | None = None
    already_submitted: SubmittedFlow | None = None


# ---- build


class CreateFlow(Body, frozen=True, kw_only=True):
    flow_kind: str
    flow_id: Uuid | None = None
    namespace: str = "default"


class FlowId(Answer, frozen=True, kw_only=True):
    flow_id: str


class CreateFlowAnswer(Tagged, frozen=True, kw_only=True):
    created: FlowId | None = None
    already_satisfied: FlowId | None = None


class AddMember(Body, frozen=True, kw_only=True):
    execution_id: ExecutionId
    flow_id: str | None = None


class Added(Answer, frozen=True, kw_only=True):
    execution_id: str
    new_node_count: int


class AlreadyMember(Answer, frozen=True, kw_only=True):
    execution_id: str
    node_count: int


class MemberAnswer(Tagged, frozen=True, kw_only=True):
    added: Added | None = None
    already_member: AlreadyMember | None = None


class StageEdge(Body, frozen=True, kw_only=True):
    edge_id: Uuid
    upstream_execution_id: ExecutionId
    downstream_execution_id: ExecutionId
    expected_graph_revision: int
    dependency_kind: str = DEFAULT_KIND
    data_passing_ref: str = ""
    apply: bool = False
    flow_id: str | None = None


class Staged(Answer, frozen=True, kw_only=True):
    edge_id: str
    new_graph_revision: int
    # Of an edge that was applied as well.
    unsatisfied_count: int | None = None


class StageAnswer(Tagged, frozen=True, kw_only=True):
    staged: Staged


class ApplyEdge(Body, frozen=True, kw_only=True):
    """What is given besides the ids must agree with the stored edge; the revision is not looked
    at."""

    edge_id: Uuid
    downstream_execution_id: ExecutionId
    upstream_execution_id: ExecutionId | None = None
    dependency_kind: str | None = None
    data_passing_ref: str | None = None
    graph_revision: int | None = None
    flow_id: str | None = None


class Unsatisfied(Answer, frozen=True, kw_only=True):
    unsatisfied_count: int


class Applied(Tagged, frozen=True, kw_only=True):
    applied: Unsatisfied


ApplyAnswer = Applied | Literal["AlreadyApplied"]


class SetEdgePolicy(Body, frozen=True, kw_only=True):
    kind: str
    k: int | None = None
    on_satisfied: str | None = None
    flow_id: str | None = None


PolicySet = Literal["Set", "AlreadySet"]


class SetFlowTags(Body, frozen=True, kw_only=True):
    tags: dict[str, str]
    flow_id: str | None = None


class FlowTagsAnswer(Tagged, frozen=True, kw_only=True):
    updated: TagCount


# ---- cancel, replay


class CancelFlow(Body, frozen=True, kw_only=True):
    reason: str
    cancellation_policy: str
    flow_id: str | None = None


class CancelFlowQuery(Params, frozen=True, kw_only=True):
    """`wait` is on for `true` and `1`, and off for everything else."""

    wait: str = ""


class CancellationScheduled(Answer, frozen=True, kw_only=True):
    cancellation_policy: str
    member_count: int
    member_execution_ids: list[str]


class FlowCancelled(Answer, frozen=True, kw_only=True):
    cancellation_policy: str
    member_execution_ids: list[str]


class PartiallyCancelled(Answer, frozen=True, kw_only=True):
    cancellation_policy: str
    member_execution_ids: list[str]
    failed_member_execution_ids: list[str]


class CancelFlowAnswer(Tagged, frozen=True, kw_only=True):
    cancellation_scheduled: CancellationScheduled | None = None
    cancelled: FlowCancelled | None = None
    partially_cancelled: PartiallyCancelled | None = None


class ReplayFlow(Body, frozen=True, kw_only=True):
    execution_ids: list[ExecutionId] | None = None
    reason: str = ""
    requested_by: str = ""
    flow_id: str | None = None


class ReplayedMember(Answer, frozen=True, kw_only=True):
    execution_id: str
    public_state: str | None = None
    error: ErrorBody | None = None


class ReplayedFlow(Answer, frozen=True, kw_only=True):
    flow_id: str
    items: list[ReplayedMember]


class ReplayFlowAnswer(Tagged, frozen=True, kw_only=True):
    replayed: ReplayedFlow


# ---- read


class EdgeGroup(Answer, frozen=True, kw_only=True):
    """How far the inbound edges of one member have come."""

    downstream_execution_id: str
    policy: EdgePolicy
    total_deps: int
    satisfied_count: int
    failed_count: int
    skipped_count: int
    running_count: int
    group_state: str


class Flow(Answer, frozen=True, kw_only=True):
    flow_id: str
    flow_kind: str
    namespace: str
    public_flow_state: str
    graph_revision: int
    node_count: int
    edge_count: int
    total_members: int
    members_waiting: int
    members_delayed: int
    members_rate_limited: int
    members_waiting_children: int
    members_active: int
    members_suspended: int
    members_completed: int
    members_failed: int
    members_cancelled: int
    members_expired: int
    members_skipped: int
    incomplete: bool
    unsettled: int
    created_at: int
    changed_at: int
    due_at: int | None = None
    finished_at: int | None = None
    cancelled_at: int | None = None
    cancel_reason: str | None = None
    cancel_policy: str | None = None
    tags: dict[str, str]
    edge_groups: list[EdgeGroup]


class PageQuery(Params, frozen=True, kw_only=True):
    cursor: str = ""
    limit: Annotated[int, msgspec.Meta(ge=0)] = 50


class Member(Answer, frozen=True, kw_only=True):
    execution_id: str
    public_state: str


class Members(Answer, frozen=True, kw_only=True):
    members: list[Member]
    next_cursor: str | None


class EdgesQuery(PageQuery, frozen=True, kw_only=True):
    execution_id: str = ""
    direction: Literal["incoming", "outgoing"] = "outgoing"


class Edge(Answer, frozen=True, kw_only=True):
    edge_id: str
    flow_id: str
    upstream_execution_id: str
    downstream_execution_id: str
    dependency_kind: str
    data_passing_ref: str | None = None
    edge_state: str
    resolved_at: int | None = None
    created_at: int
    created_by: str


class Edges(Answer, frozen=True, kw_only=True):
    edges: list[Edge]
    next_cursor: str | None


class FlowsQuery(Params, frozen=True, kw_only=True):
    """One query for both listings: the flows of a partition, or a search."""

    partition: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | msgspec.UnsetType = msgspec.UNSET
    namespace: str = ""
    state: tuple[str, ...] = ()
    kind: str = ""
    tag: tuple[str, ...] = ()
    created_after: Annotated[int, msgspec.Meta(ge=0)] = 0
    created_before: Annotated[int, msgspec.Meta(ge=0)] = 0
    order: Literal["created_desc", "created_asc"] = "created_desc"
    limit: Annotated[int, msgspec.Meta(ge=0)] = 50
    cursor: str = ""


class FlowSummary(Answer, frozen=True, kw_only=True):
    flow_id: str
    created_at: int
    status: str


class Flows(Answer, frozen=True, kw_only=True):
    flows: list[FlowSummary]
    next_cursor: str | None


class FoundFlow(Answer, frozen=True, kw_only=True):
    flow_id: str
    flow_kind: str
    namespace: str
    public_flow_state: str
    total_members: int
    created_at: int
    tags: dict[str, str]


class FoundFlows(Answer, frozen=True, kw_only=True):
    items: list[FoundFlow]
    next_cursor: str | None
    scanned: int
