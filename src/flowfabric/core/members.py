"""A flow's side of its members' moves: counters, coverage by a cancel, and the end."""

import msgspec

from flowfabric.core.events import LogEntry
from flowfabric.core.graph import Flow, count_move, flow_state, is_covered, live_members
from flowfabric.core.rows import Rows
from flowfabric.core.states import FINAL
from flowfabric.core.step import Step

_replace = msgspec.structs.replace


def move_member(rows: Rows, done: Step) -> None:
    """Carry one member's step over to its flow."""
    after = done.after
    flow = rows.flow(after.flow_id)
    if flow is None:
        return
    before = done.before
    was = (before.state, before.reason) if before and before.flow_id else None
    moved = count_move(flow, was, (after.state, after.reason))
    if moved is not flow and moved.finished_at and after.state not in FINAL:
        moved = _replace(moved, finished_at=0, purge_at=0)
    # A member the cancellation covers from now on is ended by the flow's own timer.
    if is_covered(moved, after.state) and moved.due_at == 0:
        moved = _replace(moved, due_at=rows.now)
    if moved is not flow:
        rows.put_flow(_replace(moved, changed_at=rows.now, version=flow.version + 1))


def finish_flow(rows: Rows, flow_id: str) -> None:
    """Close the flow when its last live member has ended."""
    flow = rows.flow(flow_id)
    if flow is None or not flow.node_count or flow.incomplete or flow.finished_at:
        return
    if live_members(flow):
        return
    ended = _replace(
        flow,
        finished_at=rows.now,
        purge_at=rows.now + flow.retention_ms,
        changed_at=rows.now,
        version=flow.version + 1,
    )
    rows.put_flow(ended)
    rows.log(_finished(ended, rows.now))


def _finished(flow: Flow, now: int) -> LogEntry:
    return LogEntry(
        at=now,
        flow_id=flow.flow_id,
        namespace=flow.namespace,
        kind="finished",
        families=("flow",),
        tags=flow.tags,
        details={"state": flow_state(flow)},
    )
