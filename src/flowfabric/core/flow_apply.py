"""`apply_flow`: one flow plan, wholly or not at all, in the order every store keeps.

1. guards of the flow, its groups, edges and members  2. flow  3. members  4. edges and groups
5. settle  6. event  7. cancel members  8. the flow's end.
"""

import msgspec

from flowfabric.core.apply import graph_fits, write_graph
from flowfabric.core.flow_cancel import cancel_members
from flowfabric.core.flow_plan import FlowAnswer, FlowApplied, FlowPlan, FlowRefused
from flowfabric.core.graph import Flow, edge_key, ends_of, grown, has_work
from flowfabric.core.members import finish_flow, flow_entry, keep_flow, move_member
from flowfabric.core.plan import Guard, Plan
from flowfabric.core.rows import Rows
from flowfabric.core.settle import settle_edges
from flowfabric.core.states import is_move, not_a_move
from flowfabric.core.transition import guard_holds, transition

_replace = msgspec.structs.replace


def apply_flow(rows: Rows, plan: FlowPlan) -> FlowAnswer:
    found = rows.flow(plan.flow_id)
    flow = found or plan.create
    if flow is None or not _fits(rows, plan, flow):
        return FlowRefused(found)
    if found is None:
        flow = _replace(flow, created_at=rows.now)
    _write_flow(rows, plan, flow)
    for member in plan.members:
        _write_member(rows, member)
    write_graph(rows, plan.graph)
    settle_edges(rows, plan.flow_id, plan.graph.edges)
    return _finish(rows, plan, flow)


def _fits(rows: Rows, plan: FlowPlan, flow: Flow) -> bool:
    guard = plan.guard
    if guard.uncancelled and flow.cancelled_at:
        return False
    if guard.version and flow.version != guard.version:
        return False
    if guard.graph_revision is not None and flow.graph_revision != guard.graph_revision:
        return False
    guards = [(one.execution_id, one.guard) for one in plan.requires]
    guards += [(one.target, one.guard) for one in plan.members]
    if not all(_member_fits(rows, *one) for one in guards):
        return False
    return graph_fits(rows, plan.graph) and _edges_fit(rows, plan)


def _member_fits(rows: Rows, execution_id: str, guard: Guard) -> bool:
    record = rows.record(execution_id)
    return record is not None and guard_holds(guard, record, rows.now)


def _edges_fit(rows: Rows, plan: FlowPlan) -> bool:
    """An edge never changes its ends."""
    for edge in plan.graph.edges:
        stored = rows.edge(*edge_key(edge))
        if stored is not None and ends_of(stored) != ends_of(edge):
            return False
    return True


def _write_flow(rows: Rows, plan: FlowPlan, flow: Flow) -> None:
    joining = sum(member.rule == "join" for member in plan.members)
    added = sum(rows.edge(*edge_key(edge)) is None for edge in plan.graph.edges)
    changes = {**plan.set, **dict.fromkeys(plan.stamp, rows.now)}
    if plan.tags:
        changes["tags"] = {**flow.tags, **plan.tags}
    keep_flow(rows, _replace(grown(flow, members=joining, edges=added), **changes))


def _write_member(rows: Rows, plan: Plan) -> None:
    record = rows.record(plan.target)
    state = record.state if record else ""
    target = plan.set.get("state", state)
    if record is None or not is_move(plan.rule, state, target):
        raise not_a_move(plan.rule, state, target)
    done = transition(record, plan, rows.now)
    rows.write(done)
    move_member(rows, done)


def _finish(rows: Rows, plan: FlowPlan, flow: Flow) -> FlowApplied:
    if plan.event is not None:
        rows.log(flow_entry(rows.flow(plan.flow_id) or flow, plan.event, rows.now))
    cancelled = cancel_members(rows, plan.flow_id) if plan.cancels else 0
    finish_flow(rows, plan.flow_id)
    after = rows.flow(plan.flow_id) or flow
    groups = (rows.group(group.target) for group in plan.graph.groups)
    return FlowApplied(
        after,
        rows.now,
        tuple(group for group in groups if group is not None),
        cancelled,
        has_work(after),
    )
