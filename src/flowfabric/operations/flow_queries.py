"""Reads of flows: one with its counts, its members and edges, search."""

from typing import Annotated, Literal

import msgspec

from flowfabric.core.edge_policies import EdgePolicy
from flowfabric.errors import FlowNotFound
from flowfabric.operations.declaration import READ, operation
from flowfabric.operations.types import (
    VISIBLE,
    Answer,
    FlowId,
    Free,
    Limit,
    Namespace,
    Page,
    Params,
)

Direction = Literal["incoming", "outgoing"]


FlowOrder = Literal["created_desc", "created_asc"]


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


class FlowSnapshot(Answer, frozen=True, kw_only=True):
    """`members` counts them by public state. An instant of 0 has not come."""

    flow_id: str
    flow_kind: str
    namespace: str
    public_flow_state: str
    graph_revision: int
    node_count: int
    edge_count: int
    total_members: int
    members: dict[str, int]
    incomplete: bool
    unsettled: int
    created_at: int
    changed_at: int
    due_at: int = 0
    finished_at: int = 0
    cancelled_at: int = 0
    cancel_reason: str = ""
    cancel_policy: str = ""
    tags: dict[str, str]
    edge_groups: list[EdgeGroup]


class Member(Answer, frozen=True):
    execution_id: str
    public_state: str


class EdgeSnapshot(Answer, frozen=True, kw_only=True):
    edge_id: str
    flow_id: str
    upstream_execution_id: str
    downstream_execution_id: str
    dependency_kind: str
    data_passing_ref: str = ""
    edge_state: str
    resolved_at: int = 0
    created_at: int
    created_by: str


class FlowSummary(Answer, frozen=True):
    flow_id: str
    created_at: int
    status: str


class FlowSearch(Params, frozen=True, kw_only=True):
    namespace: Namespace = ""
    state: tuple[str, ...] = ()
    kind: str = ""
    tag: tuple[str, ...] = ()
    created_after: Annotated[int, msgspec.Meta(ge=0)] = 0
    created_before: Annotated[int, msgspec.Meta(ge=0)] = 0
    order: FlowOrder = "created_desc"
    limit: Limit = 50
    cursor: str = ""


class FoundFlow(Answer, frozen=True, kw_only=True):
    flow_id: str
    flow_kind: str
    namespace: str
    public_flow_state: str
    total_members: int
    created_at: int
    tags: dict[str, str]


class FlowQueries:
    @operation("GET /v1/partitions/{partition}/flows", READ, owner=VISIBLE)
    async def list_flows(
        self, partition: int, cursor: str = "", limit: int = 50
    ) -> Page[FlowSummary]:
        """All flows of a partition, finished ones too, by id."""

    @operation("GET /v1/flows/search", READ, owner=VISIBLE)
    async def search_flows(self, query: FlowSearch) -> Page[FoundFlow]:
        """Flows that match, across partitions; a short page may have a next one."""

    @operation("GET /v1/flows/{flow_id}", READ, FlowNotFound)
    async def describe_flow(self, flow_id: FlowId) -> FlowSnapshot:
        """A flow with its counts, and how far the inbound edges of its members have come."""

    @operation("GET /v1/flows/{flow_id}/members", READ, FlowNotFound)
    async def list_members(
        self, flow_id: FlowId, cursor: str = "", limit: int = 50
    ) -> Page[Member]:
        """Members by creation."""

    @operation("GET /v1/flows/{flow_id}/edges", READ, FlowNotFound)
    async def list_edges(
        self,
        flow_id: FlowId,
        execution_id: Annotated[str, Free("only edges of the flow are found")] = "",
        direction: Direction = "outgoing",
        cursor: str = "",
        limit: int = 50,
    ) -> Page[EdgeSnapshot]:
        """Edges by id: all of the flow, or those that leave or reach one member."""
