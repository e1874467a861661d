"""`apply`: one plan, wholly or not at all. Every store does exactly this, in this order.

1. guard  2. record  3. attempt, blobs, documents, stream  4. views  5. settle
6. flow counters  7. event. Notifications go out after the batch, outside of here.

`apply_flow` does the same for a flow plan: 1. guards of the flow, its groups, edges and members
2. flow  3. members  4. edges and groups  5. settle  6. event  7. cancel members  8. the flow's end.
A cancelled flow ends its members a bounded number at a time, until none is left.
"""

from contextlib import suppress
from typing import Final

import msgspec

from flowfabric.core.graph import (
    Flow,
    GraphEdit,
    edge_key,
    ends_of,
    flow_due_at,
    grown,
    has_work,
    may_cancel_members,
    states_to_cancel,
)
from flowfabric.core.members import finish_flow, flow_entry, keep_flow, move_member
from flowfabric.core.plan import (
    Answer,
    Applied,
    Brief,
    FlowAnswer,
    FlowApplied,
    FlowPlan,
    FlowRefused,
    Guard,
    Plan,
    Refused,
)
from flowfabric.core.record import Record
from flowfabric.core.rows import Rows
from flowfabric.core.rules.operators import cancel
from flowfabric.core.settle import (
    cancel_children,
    continue_flow,
    release_if_open,
    settle_edges,
    settle_from,
    settle_restart,
)
from flowfabric.core.states import FINAL, State, is_move, not_a_move
from flowfabric.core.transition import Transition, guard_holds, is_repeat, transition
from flowfabric.errors import FlowFabricError


def apply(rows: Rows, plan: Plan) -> Answer:
    record = rows.record(plan.target)
    if record is None:
        return Refused(None, rows.now)
    if is_repeat(plan, record):
        brief = Brief(record.op_state, record.version, record.op_wake_at, record.gated)
        return Applied(brief, record.op_state, rows.now, _wanted(plan, record), replayed=True)
    if not guard_holds(plan.guard, record, rows.now) or not _flow_fits(rows, plan, record):
        return Refused(record, rows.now)
    target = plan.set.get("state", record.state)
    if not is_move(plan.rule, record.state, target):
        raise not_a_move(plan.rule, record.state, target)
    return _perform(rows, plan, transition(record, plan, rows.now))


def _perform(rows: Rows, plan: Plan, done: Transition) -> Answer:
    rows.write(done)
    _write_rest(rows, plan)
    after = done.after
    moved = _has_moved(plan, done)
    if moved and after.flow_id:
        _settle(rows, plan, done)
    if after.state == "blocked":
        after = _release_if_met(rows, after)
        if plan.op and after.state != "blocked":
            after = _remember_answer(rows, after)
    more = moved and bool(after.flow_id) and _has_more(rows, after.flow_id)
    was = done.before.state if done.before else ""
    return Applied(_brief(after), was, rows.now, _wanted(plan, after), more=more)


def _has_moved(plan: Plan, done: Transition) -> bool:
    """Whether the flow has to know. A renewal, a report or a tag is none of its business."""
    before, after = done.before, done.after
    if before is None or plan.graph is not None:
        return True
    return (before.state, before.reason) != (after.state, after.reason)


# Rules that bring edges along to members that are there.
_PARKING: Final = ("park", "suspend")


def _settle(rows: Rows, plan: Plan, done: Transition) -> None:
    after = done.after
    move_member(rows, done)
    if plan.graph is not None:
        if plan.rule in _PARKING:
            _grow(rows, after.flow_id, len(plan.graph.edges))
        replayed = plan.rule == "replay"
        settle_edges(rows, after.flow_id, plan.graph.edges, replayed=replayed)
    if after.state in FINAL and plan.settle:
        settle_from(rows, after)
    if plan.rule == "restart":
        settle_restart(rows, after)


def _grow(rows: Rows, flow_id: str, edges: int) -> None:
    flow = rows.flow(flow_id)
    if flow is not None and edges:
        keep_flow(rows, grown(flow, edges=edges))


def _has_more(rows: Rows, flow_id: str) -> bool:
    """End the flow if this was its last member; whether the step left it something to do."""
    finish_flow(rows, flow_id)
    flow = rows.flow(flow_id)
    return flow is not None and has_work(flow)


def _release_if_met(rows: Rows, after: Record) -> Record:
    """A record that parks or replays may wait for nothing: the last child ended just before."""
    record = rows.record(after.execution_id) or after
    if record.state == "blocked" and record.reason == "dependencies":
        return release_if_open(rows, record)
    return record


def _remember_answer(rows: Rows, released: Record) -> Record:
    """A repeat is to be answered like the call that parked and was released in the same step."""
    remembered = msgspec.structs.replace(
        released, op_state=released.state, op_wake_at=released.wake_at
    )
    rows.write(Transition(released, remembered))
    return remembered


def _flow_fits(rows: Rows, plan: Plan, record: Record) -> bool:
    if plan.guard.uncancelled and record.flow_id:
        flow = rows.flow(record.flow_id)
        if flow is not None and flow.cancelled_at:
            return False
    return graph_fits(rows, plan.graph)


def graph_fits(rows: Rows, edit: GraphEdit | None) -> bool:
    """Whether every group the edit replaces is still the one it was decided from."""
    seen = edit.seen if edit is not None else {}
    return all(rows.group(target) == group for target, group in seen.items())


def write_graph(rows: Rows, edit: GraphEdit) -> None:
    for edge in edit.edges:
        rows.put_edge(edge)
    for group in edit.groups:
        rows.put_group(group)


def _write_rest(rows: Rows, plan: Plan) -> None:
    if plan.blobs:
        rows.put_blobs(plan.target, plan.blobs)
    if plan.documents:
        rows.put_documents(plan.target, plan.documents)
    if plan.drop_journal_from:
        rows.drop_journal(plan.target, plan.drop_journal_from)
    if plan.steps:
        rows.add_steps(plan.target, plan.steps)
    if plan.graph is not None:
        write_graph(rows, plan.graph)


def _brief(record: Record) -> Brief:
    return Brief(record.state, record.version, record.wake_at, record.gated)


def _wanted(plan: Plan, record: Record) -> Record | None:
    return record if plan.want == "record" else None


_replace = msgspec.structs.replace


# ---- flows


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
    if may_cancel_members(flow) and cancel_members(rows, flow.flow_id):
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
    ended: list[Record] = []
    for state in states_to_cancel(flow):
        ended += _cancel_in(rows, flow, state, MEMBERS_PER_STEP - len(ended))
        if len(ended) >= MEMBERS_PER_STEP:
            break
    if flow.cancel_policy == "cancel_pending":
        cancel_children(rows, flow_id, ended)
    return len(ended)


def _cancel_in(rows: Rows, flow: Flow, state: State, most: int) -> list[Record]:
    ended: list[Record] = []
    after: tuple[int, str] | None = None
    for _ in range(LOOKS_PER_STEP // MEMBERS_PER_STEP):
        found = rows.members_in(flow.flow_id, state, after, most - len(ended))
        _expect(rows, [execution_id for _, execution_id in found])
        cancelled = (_cancel(rows, flow, execution_id) for _, execution_id in found)
        ended += [record for record in cancelled if record is not None]
        if len(ended) >= most or not found:
            break
        after = found[-1]
    return ended


def _expect(rows: Rows, members: list[str]) -> None:
    # One that cannot be read spoils the reading of all: then each is read by itself.
    with suppress(FlowFabricError):
        rows.expect(members)


def _cancel(rows: Rows, flow: Flow, execution_id: str) -> Record | None:
    """End one member. One that cannot be read is passed over: the others must not wait for it."""
    try:
        record = rows.record(execution_id)
        if record is None or record.state not in states_to_cancel(flow):
            return None
        plan = cancel(execution_id, flow.cancel_reason, "flow_cascade", None)
        done = transition(record, plan, rows.now)
    except FlowFabricError:
        return None
    rows.write(done)
    move_member(rows, done)
    return done.after
