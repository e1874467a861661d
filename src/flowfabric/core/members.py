"""A flow's side of its members' moves: counters, timer, and the end."""

import msgspec

from flowfabric.core.events import LogEntry
from flowfabric.core.graph import Flow, count_move, flow_due_at, flow_state, is_over
from flowfabric.core.plan import Event
from flowfabric.core.rows import Rows
from flowfabric.core.states import FINAL
from flowfabric.core.transition import Transition

_replace = msgspec.structs.replace


def keep_flow(rows: Rows, flow: Flow) -> Flow:
    """Write a flow that has changed, with its timer, which follows from the rest."""
    kept = _replace(
        flow, due_at=flow_due_at(flow, rows.now), changed_at=rows.now, version=flow.version + 1
    )
    rows.put_flow(kept)
    return kept


def move_member(rows: Rows, done: Transition) -> None:
    """Carry one member's step over to its flow.

    A member that the flow's cancellation covers from now on sets the flow's timer by this.
    """
    after = done.after
    flow = rows.flow(after.flow_id)
    if flow is None:
        return
    before = done.before
    was = (before.state, before.reason) if before and before.flow_id else None
    moved = count_move(flow, was, (after.state, after.reason))
    if moved is flow:
        return
    if moved.finished_at and after.state not in FINAL:
        moved = _replace(moved, finished_at=0, purge_at=0)
    keep_flow(rows, moved)


def finish_flow(rows: Rows, flow_id: str) -> None:
    """Close the flow when its last live member has ended."""
    flow = rows.flow(flow_id)
    if flow is None or flow.finished_at or not is_over(flow):
        return
    ended = _replace(flow, finished_at=rows.now, purge_at=rows.now + flow.retention_ms)
    keep_flow(rows, ended)
    event = Event("finished", ("flow",), {"state": flow_state(ended)})
    rows.log(flow_entry(ended, event, rows.now))


def flow_entry(flow: Flow, event: Event, now: int) -> LogEntry:
    """What the log tells about a flow as such."""
    return LogEntry(
        at=now,
        flow_id=flow.flow_id,
        namespace=flow.namespace,
        kind=event.kind,
        families=event.families,
        tags=flow.tags,
        details=event.details,
    )
