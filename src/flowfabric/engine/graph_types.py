"""A whole graph as callers submit it: members by name, arrows between names."""

from collections.abc import Mapping
from typing import Any

import msgspec

from flowfabric.engine.flow_types import DEFAULT_KIND


class GraphNode(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One member; what is unset is as for an execution submitted by itself."""

    name: str
    lane: str = "default"
    kind: str = ""
    input: bytes = b""
    payload_encoding: str = ""
    priority: int | None = None
    policy: bytes | str | Mapping[str, object] | None = None
    tags: Mapping[str, object] | None = None
    delay_until: int | None = None
    deadline_at: int | None = None
    execution_id: str = ""


class GraphEdge(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """`target` waits for `source`; both are names of nodes."""

    source: str
    target: str
    edge_id: str = ""
    dependency_kind: str = DEFAULT_KIND
    data_passing_ref: str = ""


class GraphGroup(msgspec.Struct, frozen=True):
    """How the inbound edges of one node combine."""

    target: str
    policy: Any


class GraphSubmission(msgspec.Struct, frozen=True, kw_only=True):
    """A flow with all its members and edges. With a key, or with the flow's id, a repeat meets the
    flow of the first call and finishes what that did not get to."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...] = ()
    groups: tuple[GraphGroup, ...] = ()
    flow_kind: str = ""
    namespace: str = "default"
    flow_id: str = ""
    idempotency_key: str = ""
    creator: str = ""
    tags: Mapping[str, object] | None = None


class GraphSubmitted(msgspec.Struct, frozen=True):
    """`executions` are the members' ids by name; `is_new` is false when the graph was whole
    before."""

    flow_id: str
    graph_revision: int
    executions: Mapping[str, str]
    is_new: bool
