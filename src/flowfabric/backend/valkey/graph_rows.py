"""Flows, edges and groups as packed arrays, and back."""

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from msgspec.msgpack import decode

from flowfabric.backend.valkey.graph_layout import EDGE, FLOW, GROUP
from flowfabric.core.graph import Edge, Flow, GraphEdit, Group, Unsettled
from flowfabric.core.states import PUBLIC_STATES

_edge_values: Final = attrgetter(*EDGE)
_group_values: Final = attrgetter(*GROUP)
_flow_values: Final = attrgetter(*FLOW)
_UNSETTLED: Final = FLOW.index("unsettled")
_TAGS: Final = FLOW.index("tags")

Searchable = frozenset[str]


def pack_flow(flow: Flow, searchable: Searchable) -> list[Any]:
    values = list(_flow_values(flow))
    values[_UNSETTLED] = flow.unsettled or ""
    values[_TAGS] = pack_tags(flow.tags, searchable) or ""
    return values + [flow.counts.get(name, 0) for name in PUBLIC_STATES]


def pack_tags(tags: Mapping[str, str], searchable: Searchable) -> list[Any]:
    return [part for name in tags for part in (name, tags[name], name in searchable)]


def flow_of(flow_id: str, values: list[Any]) -> Flow:
    fields, counts = dict(zip(FLOW, values, strict=False)), values[len(FLOW) :]
    tags = fields["tags"]
    fields["counts"] = {name: n for name, n in zip(PUBLIC_STATES, counts, strict=True) if n}
    fields["unsettled"] = tuple(Unsettled(*one) for one in fields["unsettled"])
    fields["tags"] = dict(zip(tags[::3], tags[1::3], strict=True))
    return Flow(flow_id=flow_id, **fields)


def flow_or_none(flow_id: str, values: list[Any] | bool) -> Flow | None:
    return flow_of(flow_id, values) if isinstance(values, list) else None


def pack_edge(edge: Edge) -> tuple[str, tuple[Any, ...]]:
    return edge.edge_id, _edge_values(edge)


def edge_of(flow_id: str, edge_id: str, row: bytes) -> Edge:
    fields = dict(zip(EDGE, decode(row), strict=True))
    return Edge(edge_id=edge_id, flow_id=flow_id, **fields)


def edges_of(flow_id: str, flat: Sequence[bytes]) -> Iterator[Edge]:
    """Edges from their ids and packed rows in turn."""
    pairs = zip(flat[::2], flat[1::2], strict=True)
    return (edge_of(flow_id, edge_id.decode(), row) for edge_id, row in pairs)


def pack_group(group: Group) -> tuple[str, tuple[Any, ...]]:
    return group.target, _group_values(group)


def group_of(target: str, values: Sequence[Any]) -> Group:
    return Group(target=target, **dict(zip(GROUP, values, strict=True)))


def pack_edit(edit: GraphEdit) -> tuple[Any, ...]:
    """Edges, groups, and the groups as they were seen."""
    seen = [(name, _group_values(group) if group else False) for name, group in edit.seen.items()]
    return [pack_edge(one) for one in edit.edges], [pack_group(one) for one in edit.groups], seen
