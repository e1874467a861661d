"""Cutting a graph that is too large for one step, so that nothing starts before all is stored.

A member travels with its inbound edges, and members that have none come last: until they are there
nobody can run. Very many edges of one member go on in chunks of their own; its group counts those
that are still to come as staged.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.new_execution import NewExecution, NewGraph

_replace = msgspec.structs.replace


class Size(msgspec.Struct, frozen=True):
    """How much a step may write."""

    members: int
    edges: int
    bytes: int


# A submit that has sent nothing for so long will not go on.
ABANDONED_AFTER_MS: Final = 600_000
ONE_STEP: Final = Size(1_000, 5_000, 8 * 1024 * 1024)
# Smaller than need be: no step of a large graph is to hold up everybody else for long.
CHUNK: Final = Size(50, 125, 1024 * 1024)


class WholeGraph(msgspec.Struct, frozen=True):
    """A checked graph: its members, the edges into each, and the groups of those that have any."""

    flow: Flow
    members: tuple[NewExecution, ...]
    inbound: Mapping[str, Sequence[Edge]]
    groups: Mapping[str, Group]


def chunks_of(
    graph: WholeGraph, one_step: Size = ONE_STEP, chunk: Size = CHUNK
) -> Iterator[NewGraph]:
    """The graph as steps, to be done in this order."""
    edges = sum(len(inbound) for inbound in graph.inbound.values())
    size = sum(len(member.input) for member in graph.members)
    whole = Size(len(graph.members), edges, size)
    if _fits(whole, one_step):
        return iter([_in_one(graph)])
    chunks = enumerate(_in_chunks(graph, chunk))
    return (_replace(one, is_first=not number) for number, one in chunks)


def _fits(size: Size, limit: Size) -> bool:
    return size.members <= limit.members and size.edges <= limit.edges and size.bytes <= limit.bytes


def _in_one(graph: WholeGraph) -> NewGraph:
    return NewGraph(
        flow=graph.flow,
        members=graph.members,
        edges=tuple(edge for inbound in graph.inbound.values() for edge in inbound),
        groups=tuple(graph.groups.values()),
    )


class _Chunk:
    """A step that is being filled."""

    def __init__(self, flow: Flow, limit: Size) -> None:
        self._flow = flow
        self._limit = limit
        self._members: list[NewExecution] = []
        self._edges: list[Edge] = []
        self._groups: list[Group] = []
        self._bytes = 0

    def has_room(self, member: NewExecution, edges: int) -> bool:
        size = Size(
            len(self._members) + 1, len(self._edges) + edges, self._bytes + len(member.input)
        )
        return not self._members or _fits(size, self._limit)

    def add(self, member: NewExecution, edges: Sequence[Edge], group: Group | None) -> None:
        self._members.append(member)
        self._edges += edges
        self._bytes += len(member.input)
        if group is not None:
            self._groups.append(group)

    def as_graph(self, *, is_last: bool = False) -> NewGraph:
        return NewGraph(
            flow=self._flow,
            members=tuple(self._members),
            edges=tuple(self._edges),
            groups=tuple(self._groups),
            is_last=is_last,
        )


def _in_chunks(graph: WholeGraph, limit: Size) -> Iterator[NewGraph]:
    flow = _replace(graph.flow, incomplete=True)
    waiting = [member for member in graph.members if member.execution_id in graph.inbound]
    roots = [member for member in graph.members if member.execution_id not in graph.inbound]
    chunk = _Chunk(flow, limit)
    for member in (*waiting, *roots):
        own = member.execution_id
        inbound = graph.inbound.get(own, ())
        first, rest = inbound[: limit.edges], inbound[limit.edges :]
        if not chunk.has_room(member, len(first)):
            yield chunk.as_graph()
            chunk = _Chunk(flow, limit)
        group = graph.groups.get(own)
        if group is not None and rest:
            group = _replace(group, n=len(first), staged=len(rest))
        chunk.add(member, first, group)
        if rest:
            yield chunk.as_graph()
            chunk = _Chunk(flow, limit)
            yield from _edges_alone(flow, rest, limit.edges)
    yield chunk.as_graph(is_last=True)


def _edges_alone(flow: Flow, edges: Sequence[Edge], most: int) -> Iterator[NewGraph]:
    for start in range(0, len(edges), most):
        yield NewGraph(
            flow=flow, members=(), edges=tuple(edges[start : start + most]), is_last=False
        )
