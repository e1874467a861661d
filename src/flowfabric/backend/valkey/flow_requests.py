"""What functions are asked about flows; see `requests`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from flowfabric.backend.valkey.requests import Request, Shape


class Member(NamedTuple):
    """A member of a new graph; members are flat, one behind the other."""

    id: str
    # Its number among the shapes.
    shape: int
    static_argument: int
    input_argument: int
    group_argument: int


class CreateGraph(Request):
    """ff1_graph. Edges are as `ff.insert_edges` takes them."""

    tag: str
    flow_id: str
    flow: list[Any]
    shapes: list[Shape]
    members: list[Any]
    edges: list[Any]
    lists: list[str]
    is_last: bool


class CancelFlow(Request):
    """ff1_cancel_flow"""

    tag: str
    flow_id: str
    uncancelled: bool
    version: int | bool
    policy: str
    reason: str
    event: list[Any] | bool


class OneFlow(Request):
    """ff1_settle, ff1_flow_read"""

    tag: str
    flow_id: str


class ListFlows(Request):
    """ff1_flow_list"""

    tag: str
    after: str
    limit: int


class AgeFlows(Request):
    """ff1_flow_ages"""

    partitions: list[int]
    after_created_at: int | bool
    after_id: str
    limit: int
    newest: bool


class ListMembers(Request):
    """ff1_flow_members"""

    tag: str
    flow_id: str
    states: Sequence[str]
    after_created_at: int | bool
    after_id: str
    limit: int


class ListEdges(Request):
    """ff1_flow_edges"""

    tag: str
    flow_id: str
    of: str
    id: str
    after: str
    limit: int


class FindPurgeable(Request):
    """ff1_purgeable"""

    limit: int
    partitions: list[int]
