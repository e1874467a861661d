"""A flow and its members: the counters, timer and end that follow from a member's move, and the
plans that settling writes by itself. These are data, so that every store can carry them along."""

from typing import Final

import msgspec

from flowfabric.core.events import LogEntry
from flowfabric.core.graph import Flow, count_move, flow_due_at, flow_state, is_over
from flowfabric.core.plan import EndAttempt, Event, Guard, Plan
from flowfabric.core.record import Record
from flowfabric.core.rows import Rows
from flowfabric.core.states import FINAL, LIVE
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
    """Count one member's transition in its flow. A member that the flow's cancellation has to end
    from now on sets the flow's timer by this."""
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
    """An event of the flow itself, as an entry of the log."""
    return LogEntry(
        at=now,
        flow_id=flow.flow_id,
        namespace=flow.namespace,
        kind=event.kind,
        families=event.families,
        tags=flow.tags,
        details=event.details,
    )


_LIVE: Final = Guard(frozenset[str](LIVE))
_BLOCKED: Final = Guard(frozenset({"blocked/dependencies"}))


def release_plan(record: Record, now: int) -> Plan:
    """Let a member go whose dependencies are met; a delay that still lies ahead goes on."""
    ahead = record.wake_at > now
    return Plan(
        target=record.execution_id,
        rule="release",
        guard=_BLOCKED,
        set={"state": "delayed", "reason": "delay"} if ahead else {"state": "waiting"},
    )


def skip_plan(execution_id: str) -> Plan:
    return Plan(
        target=execution_id,
        rule="skip",
        guard=_LIVE,
        set={"state": "skipped"},
        attempt=EndAttempt("ended_cancelled", "dependency_impossible"),
        close_stream="dependency_impossible",
        event=Event(
            "released",
            ("completion", "lease"),
            {"outcome": "skipped", "reason": "dependency_impossible"},
        ),
    )


def cancel_sibling_plan(execution_id: str, reason: str) -> Plan:
    return Plan(
        target=execution_id,
        rule="cancel_sibling",
        guard=_LIVE,
        set={
            "state": "cancelled",
            "cancellation_reason": reason,
            "cancelled_by": "sibling_cut",
        },
        attempt=EndAttempt("ended_cancelled", f"cancelled: {reason}"),
        close_stream="attempt_cancelled",
        event=Event(
            "released", ("completion", "lease"), {"outcome": "cancelled", "reason": "cancelled"}
        ),
    )
