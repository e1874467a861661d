"""A flow and its members: the counters, timer and end that follow from a member's move, and the
plans that settling writes by itself. These are data, so that every store can carry them along."""

from typing import Final

import msgspec

from flowfabric.core.events import LogEntry, released
from flowfabric.core.graph import Flow, count_move, flow_due_at, flow_state, is_over
from flowfabric.core.plan import EndAttempt, Event, Guard, Plan
from flowfabric.core.record import Record
from flowfabric.core.rows import Rows
from flowfabric.core.rules.operators import cancel
from flowfabric.core.states import FINAL, FIRST, LIVE
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
    is_child = bool(after.parent_id)
    moved = count_move(flow, was, (after.state, after.reason), is_child=is_child)
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


# Why a member is skipped.
SKIPPED: Final = "dependency_impossible"
# Who cancels children whose parent has ended, and how their reason begins.
PARENT_END: Final = "parent_end"
PARENT: Final = "parent "
PARENT_RESTARTED: Final = "parent restarted"
LONG_REASON: Final = 4_096

_LIVE: Final = Guard(frozenset[str](LIVE))
_WAITING: Final = Guard(frozenset({"blocked/dependencies", f"suspended/{FIRST}"}))


def waits_for_edges(record: Record) -> bool:
    """Whether the member goes on as soon as its group is satisfied."""
    if record.state == "suspended":
        return record.reason == FIRST
    return record.state == "blocked" and record.reason == "dependencies"


def release_plan(record: Record, now: int) -> Plan:
    """Let a member go whose dependencies are met; a delay that still lies ahead goes on. What
    suspended it otherwise is over."""
    ahead = record.state == "blocked" and record.wake_at > now
    return Plan(
        target=record.execution_id,
        rule="release",
        guard=_WAITING,
        set={"state": "delayed", "reason": "delay"} if ahead else {"state": "waiting"},
    )


def skip_plan(execution_id: str) -> Plan:
    return Plan(
        target=execution_id,
        rule="skip",
        guard=_LIVE,
        set={"state": "skipped"},
        attempt=EndAttempt("ended_cancelled", SKIPPED),
        close_stream=SKIPPED,
        event=released(SKIPPED, "skipped"),
    )


def cancel_sibling_plan(execution_id: str, reason: str) -> Plan:
    plan = cancel(execution_id, reason, "sibling_cut", None)
    return _replace(plan, rule="cancel_sibling", guard=_LIVE)


def cancel_child_plan(execution_id: str, reason: str) -> Plan:
    plan = cancel(execution_id, reason, PARENT_END, None)
    return _replace(plan, rule="cancel_child", guard=_LIVE)


def parent_end_reason(parent: Record) -> str:
    """Why the children of a member that ended are cancelled. A reason that has grown long, from
    parent to child, is handed on as it is."""
    match parent.state:
        case "cancelled":
            reason = parent.cancellation_reason
        case "skipped":
            reason = SKIPPED
        case _:
            reason = parent.failure_reason
    if len(reason.encode()) > LONG_REASON:
        return reason
    return PARENT + parent.state + ": " + reason
