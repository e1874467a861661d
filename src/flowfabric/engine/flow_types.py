"""What callers hand to the operations on flows, and what these answer."""

from typing import Literal

import msgspec

from flowfabric.core.graph import CancelPolicy, Edge

DEFAULT_KIND = "success_only"


class FlowCreated(msgspec.Struct, frozen=True):
    flow_id: str
    is_new: bool


class MemberAdded(msgspec.Struct, frozen=True):
    """`is_new` is false for an execution that was a member already."""

    execution_id: str
    node_count: int
    is_new: bool


class NewEdge(msgspec.Struct, frozen=True, kw_only=True):
    """An edge to be staged; `upstream` is its source, `downstream` its target."""

    flow_id: str
    edge_id: str
    upstream: str
    downstream: str
    dependency_kind: str = DEFAULT_KIND
    data_passing_ref: str = ""
    created_by: str = ""


class EdgeStaged(msgspec.Struct, frozen=True):
    """`unsatisfied_count` is set when the edge was applied as well."""

    edge_id: str
    graph_revision: int
    unsatisfied_count: int | None = None


class StagedEdge(msgspec.Struct, frozen=True, kw_only=True):
    """An edge to be applied. What is given besides the ids must agree with the stored edge."""

    flow_id: str
    edge_id: str
    downstream: str
    upstream: str | None = None
    dependency_kind: str | None = None
    data_passing_ref: str | None = None


class EdgeApplied(msgspec.Struct, frozen=True):
    unsatisfied_count: int


Set = Literal["Set", "AlreadySet"]
AlreadyApplied = Literal["AlreadyApplied"]


class Cancelled(msgspec.Struct, frozen=True):
    """Nobody the cancellation covers is live."""

    cancellation_policy: CancelPolicy
    member_execution_ids: tuple[str, ...]


class CancellationScheduled(msgspec.Struct, frozen=True):
    """The flow is cancelled; its members are being ended."""

    cancellation_policy: CancelPolicy
    member_count: int
    member_execution_ids: tuple[str, ...]


class PartiallyCancelled(msgspec.Struct, frozen=True):
    """Some members are still live; they keep being tried."""

    cancellation_policy: CancelPolicy
    member_execution_ids: tuple[str, ...]
    failed_member_execution_ids: tuple[str, ...]


FlowCancelled = Cancelled | CancellationScheduled | PartiallyCancelled


class EdgeSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    edge_id: str
    flow_id: str
    upstream_execution_id: str
    downstream_execution_id: str
    dependency_kind: str
    data_passing_ref: str | None
    edge_state: str
    resolved_at: int | None
    created_at: int
    created_by: str


def edge_snapshot(edge: Edge) -> EdgeSnapshot:
    return EdgeSnapshot(
        edge_id=edge.edge_id,
        flow_id=edge.flow_id,
        upstream_execution_id=edge.source,
        downstream_execution_id=edge.target,
        dependency_kind=edge.kind,
        data_passing_ref=edge.data_ref or None,
        edge_state=edge.state,
        resolved_at=edge.resolved_at or None,
        created_at=edge.created_at,
        created_by=edge.created_by,
    )
