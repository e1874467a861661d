"""Flow plans as packed arrays, and the upstreams of a member out of an answer."""

from collections.abc import Sequence
from typing import Any, Final

from flowfabric.backend.types import Upstream
from flowfabric.backend.valkey.calls import Reply
from flowfabric.backend.valkey.graph_layout import FLOW
from flowfabric.backend.valkey.graph_rows import Searchable, pack_edit, pack_flow, pack_tags
from flowfabric.backend.valkey.packing import Args, pack_event, pack_plan
from flowfabric.core.flow_plan import FlowPlan
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
