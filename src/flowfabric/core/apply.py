"""`apply`: one plan, wholly or not at all. Every store does exactly this, in this order.

1. guard  2. record  3. attempt, blobs, documents, stream  4. views  5. settle
6. flow counters  7. event. Notifications go out after the batch, outside of here.
"""

import msgspec

from flowfabric.core.graph import GraphEdit, grown, has_work
from flowfabric.core.members import finish_flow, keep_flow, move_member
from flowfabric.core.plan import Answer, Applied, Brief, Plan, Refused
from flowfabric.core.record import Record
from flowfabric.core.rows import Rows
from flowfabric.core.settle import release_if_open, settle_edges, settle_from
from flowfabric.core.states import FINAL, is_move, not_a_move
from flowfabric.core.transition import Transition, fits, is_repeat, transition


def apply(rows: Rows, plan: Plan) -> Answer:
    record = rows.record(plan.target)
    if record is None:
        return Refused(None, rows.now)
    if is_repeat(plan, record):
        brief = Brief(record.op_state, record.version, record.op_wake_at, record.gated)
        return Applied(brief, record.op_state, rows.now, _wanted(plan, record), replayed=True)
    if not fits(plan, record, rows.now) or not _flow_fits(rows, plan, record):
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


def _settle(rows: Rows, plan: Plan, done: Transition) -> None:
    after = done.after
    move_member(rows, done)
    if plan.graph is not None:
        if plan.rule == "park":
            _grow(rows, after.flow_id, len(plan.graph.edges))
        replayed = plan.rule == "replay"
        settle_edges(rows, after.flow_id, plan.graph.edges, replayed=replayed)
    if after.state in FINAL and plan.settle:
        settle_from(rows, after)


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
    if plan.drop_journal:
        rows.drop_journal(plan.target)
    if plan.graph is not None:
        write_graph(rows, plan.graph)


def _brief(record: Record) -> Brief:
    return Brief(record.state, record.version, record.wake_at, record.gated)


def _wanted(plan: Plan, record: Record) -> Record | None:
    return record if plan.want == "record" else None
