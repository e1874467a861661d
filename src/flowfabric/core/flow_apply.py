"""`apply_flow`: one flow plan, wholly or not at all, in the order every store keeps.

1. guards of the flow, its groups, edges and members  2. flow  3. members  4. edges and groups
5. settle  6. event  7. cancel members  8. the flow's end.

A cancelled flow ends its members a bounded number at a time, until none is left.
"""

from contextlib import suppress
from typing import Final

import msgspec

from flowfabric.core.apply import graph_fits, write_graph
from flowfabric.core.flow_plan import FlowAnswer, FlowApplied, FlowPlan, FlowRefused
from flowfabric.core.graph import (
    Flow,
    edge_key,
    ends_of,
    flow_due_at,
    grown,
    has_work,
    members_to_cancel,
    states_to_cancel,
)
from flowfabric.core.members import finish_flow, flow_entry, keep_flow, move_member
from flowfabric.core.plan import Guard, Plan
from flowfabric.core.rows import Rows
from flowfabric.core.rules.operators import cancel
from flowfabric.core.settle import continue_flow, settle_edges
from flowfabric.core.states import State, is_move, not_a_move
from flowfabric.core.transition import guard_holds, transition
from flowfabric.errors import FlowFabricError

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


MEMBERS_PER_STEP: Final = 100
# How many members that cannot be read a step passes on its way to those that can.
LOOKS_PER_STEP: Final = 1_000


def go_on_with(rows: Rows, flow: Flow) -> bool:
    """One more bounded step of what a flow has left to do; whether another one would do more.

    A cancel comes first: what it ends, nothing else has to release or skip.
    """
    if members_to_cancel(flow) and cancel_members(rows, flow.flow_id):
        finish_flow(rows, flow.flow_id)
        left = rows.flow(flow.flow_id)
        return left is not None and has_work(left)
    if not has_work(flow) and flow.due_at != flow_due_at(flow, rows.now):
        keep_flow(rows, flow)
    return continue_flow(rows, rows.flow(flow.flow_id) or flow)


def cancel_members(rows: Rows, flow_id: str) -> int:
    """End members by the flow's cancel policy, without settling their edges; how many it was."""
    flow = rows.flow(flow_id)
    if flow is None:
        return 0
    ended = 0
    for state in states_to_cancel(flow):
        ended += _cancel_in(rows, flow, state, MEMBERS_PER_STEP - ended)
        if ended >= MEMBERS_PER_STEP:
            break
    return ended


def _cancel_in(rows: Rows, flow: Flow, state: State, most: int) -> int:
    ended = 0
    after: tuple[int, str] | None = None
    for _ in range(LOOKS_PER_STEP // MEMBERS_PER_STEP):
        found = rows.members_in(flow.flow_id, state, after, most - ended)
        _expect(rows, [execution_id for _, execution_id in found])
        ended += sum(_cancel(rows, flow, execution_id) for _, execution_id in found)
        if ended >= most or not found:
            break
        after = found[-1]
    return ended


def _expect(rows: Rows, members: list[str]) -> None:
    # One that cannot be read spoils the reading of all: then each is read by itself.
    with suppress(FlowFabricError):
        rows.expect(members)


def _cancel(rows: Rows, flow: Flow, execution_id: str) -> bool:
    """End one member. One that cannot be read is passed over: the others must not wait for it."""
    try:
        record = rows.record(execution_id)
        if record is None or record.state not in states_to_cancel(flow):
            return False
        plan = cancel(execution_id, flow.cancel_reason, "flow_cascade", None)
        done = transition(record, plan, rows.now)
    except FlowFabricError:
        return False
    rows.write(done)
    move_member(rows, done)
    return True
