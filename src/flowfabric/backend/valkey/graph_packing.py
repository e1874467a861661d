"""Graphs and flow plans as packed arrays, and the upstreams of a member out of an answer."""

from collections.abc import Sequence
from typing import Any

from flowfabric.backend.valkey.calls import Reply
from flowfabric.backend.valkey.creation import pack_shape
from flowfabric.backend.valkey.graph_rows import (
    Searchable,
    pack_edge,
    pack_group,
)
from flowfabric.backend.valkey.packing import (
    Args,
    encode,
    pack_event,
    static_rest,
    static_text,
)
from flowfabric.backend.valkey.requests import CancelFlow, Member, Shape
from flowfabric.core.graph import Edge, Upstream
from flowfabric.core.new_execution import NewExecution, NewGraph
from flowfabric.core.plan import FlowPlan


def pack_cancel(plan: FlowPlan, tag: str) -> CancelFlow:
    return CancelFlow(
        tag=tag,
        flow_id=plan.flow_id,
        uncancelled=plan.guard.uncancelled,
        version=plan.guard.version or False,
        policy=plan.set["cancel_policy"],
        reason=plan.set["cancel_reason"],
        event=pack_event(plan.event),
    )


def put_edges(edges: Sequence[Edge], args: Args) -> list[Any]:
    """The number of the first edge's packed row, without the instant that is its last element, and
    the id of each."""
    first = args.put_all([encode(pack_edge(edge)[1])[:-1] for edge in edges])
    return [first, *(edge.edge_id for edge in edges)]


class Members:
    """The members of a graph, flat; what they have in common is sent once."""

    def __init__(self, graph: NewGraph, args: Args, searchable: Searchable) -> None:
        self.shapes: list[Shape] = []
        self.flat: list[Any] = []
        self._numbers: dict[bytes, int] = {}
        groups = {group.target: encode(pack_group(group)[1]) for group in graph.groups}
        for member in graph.members:
            group = groups.get(member.execution_id)
            self.flat += Member(
                id=member.execution_id,
                shape=self._shape(member, searchable),
                static_argument=args.put(
                    static_text(member.execution_id, static_rest(member.record))
                ),
                input_argument=args.put(member.input) if member.input else 0,
                group_argument=args.put_once(group) if group else 0,
            )

    def _shape(self, member: NewExecution, searchable: Searchable) -> int:
        shape = pack_shape(member, searchable)
        packed = encode(shape)
        number = self._numbers.get(packed, 0)
        if not number:
            self.shapes.append(shape)
            number = self._numbers[packed] = len(self.shapes)
        return number


def upstreams_of(packed: Sequence[Any] | bool, reply: Reply) -> tuple[Upstream, ...]:
    return tuple(_upstream(one, reply) for one in packed) if isinstance(packed, list) else ()


def _upstream(packed: Sequence[Any], reply: Reply) -> Upstream:
    edge_id, source, data_ref, outcome, satisfied_at, result, encoding, deferred = packed
    return Upstream(
        edge_id=edge_id,
        execution_id=source,
        data_ref=data_ref,
        outcome=outcome,
        satisfied_at=satisfied_at,
        result=reply.body(result),
        result_encoding=encoding,
        result_deferred=deferred,
    )
