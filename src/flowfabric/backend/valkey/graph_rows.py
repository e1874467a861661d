"""Flows, edges and groups: the order of their packed rows, the lists that edges are found in, and
how they are packed and read back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

from msgspec.msgpack import decode

from flowfabric.backend.valkey.layout import ordered
from flowfabric.core.graph import Edge, Flow, GraphEdit, Group, Unsettled, Upstream
from flowfabric.core.ids import UUID_LENGTH, uuid_of
from flowfabric.core.states import PUBLIC_STATES

# Behind these stands how many members are in each public state, and once there are any, how many of
# them are children. Tags are name, value, whether the
# deployment searches by it, in turn.
FLOW: Final = ordered(Flow, (), ("flow_id", "counts", "child_counts"))
# The instant is last, because a new edge is stored as it came, with this put behind it.
EDGE: Final = (*ordered(Edge, (), ("edge_id", "flow_id", "created_at")), "created_at")
GROUP: Final = ordered(Group, (), ("target",))

# By name, ids in their order.
EdgeLists = dict[str, list[str]]

# Behind the ids of a list of which there are more.
MORE: Final = "+"
# Names of lists begin with one of these.
ALL: Final = "e"
OUTGOING: Final = "o"
INCOMING: Final = "i"
_MORE_MARK: Final = MORE.encode()


def lists_of(edges: Iterable[Edge]) -> EdgeLists:
    lists: EdgeLists = {}
    for edge in edges:
        for name in (ALL, OUTGOING + uuid_of(edge.source), INCOMING + uuid_of(edge.target)):
            lists.setdefault(name, []).append(edge.edge_id)
    for ids in lists.values():
        ids.sort()
    return lists


def flat_lists(edges: Iterable[Edge]) -> list[str]:
    """Name and text in turn."""
    return [part for name, ids in lists_of(edges).items() for part in (name, "".join(ids))]


def ids_of(text: bytes) -> list[str]:
    ids = text.removesuffix(_MORE_MARK).decode(errors="replace")
    return [ids[start : start + UUID_LENGTH] for start in range(0, len(ids), UUID_LENGTH)]


def has_more(text: bytes) -> bool:
    return text.endswith(_MORE_MARK)


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
    every = [flow.counts] + [flow.child_counts] * bool(flow.child_counts)
    return values + [counts.get(name, 0) for counts in every for name in PUBLIC_STATES]


def pack_tags(tags: Mapping[str, str], searchable: Searchable) -> list[Any]:
    return [part for name in tags for part in (name, tags[name], name in searchable)]


def flow_of(flow_id: str, values: list[Any]) -> Flow:
    fields, counts = dict(zip(FLOW, values, strict=False)), values[len(FLOW) :]
    tags = fields["tags"]
    size = len(PUBLIC_STATES)
    fields["counts"], fields["child_counts"] = (
        {name: n for name, n in zip(PUBLIC_STATES, part, strict=bool(part)) if n}
        for part in (counts[:size], counts[size:])
    )
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


def upstreams_of(packed: Sequence[Any] | bool, bodies: Sequence[bytes]) -> tuple[Upstream, ...]:
    """Upstreams out of an answer, which names their results by number."""
    return tuple(_upstream(one, bodies) for one in packed) if isinstance(packed, list) else ()


def _upstream(packed: Sequence[Any], bodies: Sequence[bytes]) -> Upstream:
    fields = dict(zip(Upstream.__struct_fields__, packed, strict=True))
    number = fields["result"]
    return Upstream(**{**fields, "result": bodies[number] if number else None})
