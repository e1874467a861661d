"""`apply`: one plan, wholly or not at all. Every store does exactly this, in this order.

1. guard  2. record  3. attempt, blobs, documents, stream  4. views  5. settle
6. flow counters  7. event. Doorbells ring after the batch, outside of here.
"""

import msgspec

from flowfabric.core.members import finish_flow, move_member
from flowfabric.core.plan import Answer, Applied, Brief, Plan, Refused
from flowfabric.core.record import Record
from flowfabric.core.rows import Rows
from flowfabric.core.settle import release_if_open, settle_edges, settle_from
from flowfabric.core.states import FINAL, is_move
from flowfabric.core.step import Step, fits, is_repeat, step
from flowfabric.errors import Bug


def apply(rows: Rows, plan: Plan) -> Answer:
    record = rows.record(plan.target)
    if record is None:
        return Refused(None, rows.now)
    if is_repeat(plan, record):
        brief = Brief(record.op_state, record.version, record.op_wake_at)
        return Applied(brief, record.op_state, rows.now, _wanted(plan, record), replayed=True)
    if not fits(plan, record, rows.now):
        return Refused(record, rows.now)
    target = plan.set.get("state", record.state)
    if not is_move(plan.rule, record.state, target):
        raise Bug(f"{plan.rule}: {record.state} -> {target} is not a move")
    return _perform(rows, plan, step(record, plan, rows.now))


def _perform(rows: Rows, plan: Plan, done: Step) -> Answer:
    rows.write(done)
    _write_beside(rows, plan)
    after = done.after
    more = _settle(rows, plan, done) if after.flow_id else False
    if after.state == "blocked":
        after = _release_if_met(rows, after)
        if plan.op and after.state != "blocked":
            after = _remember_answer(rows, after)
    if after.flow_id:
        finish_flow(rows, after.flow_id)
    was = done.before.state if done.before else ""
    return Applied(_brief(after), was, rows.now, _wanted(plan, after), more=more)


def _settle(rows: Rows, plan: Plan, done: Step) -> bool:
    after = done.after
    move_member(rows, done)
    more = False
    if plan.graph is not None:
        replayed = plan.rule == "replay"
        more = settle_edges(rows, after.flow_id, plan.graph.edges, successes_only=replayed)
    if after.state in FINAL and plan.settle:
        more = settle_from(rows, after)
    return more


def _release_if_met(rows: Rows, after: Record) -> Record:
    """A record that parks or replays may wait for nothing: the last child ended just before."""
    record = rows.record(after.execution_id) or after
    if record.state == "blocked" and record.reason == "dependencies":
        return release_if_open(rows, record)
    return record


def _remember_answer(rows: Rows, released: Record) -> Record:
    """A repeat is to be answered like the call that parked and was released in the same step."""
    told = msgspec.structs.replace(released, op_state=released.state, op_wake_at=released.wake_at)
    rows.write(Step(released, told))
    return told


def _write_beside(rows: Rows, plan: Plan) -> None:
    if plan.blobs:
        rows.put_blobs(plan.target, plan.blobs)
    if plan.documents:
        rows.put_documents(plan.target, plan.documents)
    if plan.drop_journal:
        rows.drop_journal(plan.target)
    if plan.graph is not None:
        for edge in plan.graph.edges:
            rows.put_edge(edge)
        for group in plan.graph.groups:
            rows.put_group(group)


def _brief(record: Record) -> Brief:
    return Brief(record.state, record.version, record.wake_at)


def _wanted(plan: Plan, record: Record) -> Record | None:
    return record if plan.want == "record" else None
