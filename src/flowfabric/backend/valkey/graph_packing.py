"""Flow plans as packed arrays, and the upstreams of a member out of an answer."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from flowfabric.backend.types import Upstream
from flowfabric.backend.valkey.calls import Reply
from flowfabric.backend.valkey.graph_layout import FLOW
from flowfabric.backend.valkey.graph_rows import (
    Searchable,
    pack_edge,
    pack_edit,
    pack_flow,
    pack_group,
    pack_tags,
)
from flowfabric.backend.valkey.packing import Args, encode, pack_event, pack_plan
from flowfabric.core.flow_plan import FlowPlan
from flowfabric.core.graph import Edge, Group
from flowfabric.core.plan import Plan

_PLACES: Final = {name: place for place, name in enumerate(FLOW, 1)}


def pack_flow_plan(plan: FlowPlan, args: Args, searchable: Searchable) -> list[Any]:
    guard = plan.guard
    revision = guard.graph_revision
    requires = [Plan(target=one.execution_id, rule="", guard=one.guard) for one in plan.requires]
    return [
        plan.flow_id,
        guard.uncancelled,
        False if revision is None else revision,
        guard.version or False,
        pack_flow(plan.create, searchable) if plan.create else False,
        [part for name, value in plan.set.items() for part in (_PLACES[name], value)],
        [_PLACES[name] for name in plan.stamp],
        pack_tags(plan.tags, searchable),
        [pack_plan(one, args, searchable) for one in requires],
        [pack_plan(one, args, searchable) for one in plan.members],
        pack_edit(plan.graph),
        pack_event(plan.event),
        plan.cancels,
    ]


def put_edges(edges: Sequence[Edge], args: Args) -> list[Any]:
    """New edges: the number of the first one's packed row, and id, source and target of each."""
    first = args.put_all([encode(pack_edge(edge)[1]) for edge in edges])
    ends = ((edge.edge_id, edge.source, edge.target) for edge in edges)
    return [first, *chain.from_iterable(ends)]


def put_groups(groups: Sequence[Group], args: Args) -> list[Any]:
    """New groups: the number of the first one's packed row, and the target of each."""
    first = args.put_all([encode(pack_group(group)[1]) for group in groups])
    return [first, *(group.target for group in groups)]


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
