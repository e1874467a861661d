"""From a plan and a record to the record after it: the heart of every change.

`guard_holds` is the guard, `transition` is the write. Both are pure; `apply` puts them together
with the rows around the record.
"""

from typing import Any, Final

import msgspec

from flowfabric.core.events import LogEntry, entry_of
from flowfabric.core.plan import EndAttempt, Fence, Guard, PauseAttempt, Plan, Timer
from flowfabric.core.record import (
    DUE,
    ENDED,
    RELEASED,
    UNGRANTED,
    UNSUSPENDED,
    Attempt,
    Record,
    counting_instants,
    rank_of,
)
from flowfabric.core.states import CLAIMABLE, FINAL, HELD

_replace = msgspec.structs.replace


class Transition(msgspec.Struct, frozen=True, gc=False):
    """What one write did to one record: the pair, the attempt that ended, the log entry."""

    before: Record | None
    after: Record
    ended: Attempt | None = None
    entry: LogEntry | None = None
    # The worker instance that lost its lease by somebody else's plan.
    taken_from: str = ""


def guard_holds(guard: Guard, record: Record, now: int) -> bool:
    """Whether the record is one the plan was decided for."""
    state = record.state
    if state not in guard.states and f"{state}/{record.reason}" not in guard.states:
        return False
    fence = guard.fence
    if fence is not None and not (
        record.lease_id == fence.lease_id
        and record.lease_epoch == fence.lease_epoch
        and record.attempt_id == fence.attempt_id
        and record.lease_until > now
    ):
        return False
    if guard.version and record.version != guard.version:
        return False
    if guard.suspension_id and record.suspension_id != guard.suspension_id:
        return False
    if guard.mail_count is not None and record.mail_count != guard.mail_count:
        return False
    return not guard.grant_id or record.grant_id == guard.grant_id


def op_key(plan: Plan) -> str:
    """The operation id as the record remembers it; the lease makes a reused text another one."""
    if not plan.op or plan.guard.fence is None:
        return ""
    return operation_of(plan.guard.fence, plan.op)


def operation_of(fence: Fence, op: str) -> str:
    return f"{fence.lease_id}:{op}"


def is_repeat(plan: Plan, record: Record) -> bool:
    """Whether this very operation was applied already and only its answer was lost."""
    return bool(plan.op) and record.op_id == op_key(plan)


def transition(record: Record, plan: Plan, now: int) -> Transition:
    """The record after the plan, with everything that follows from its new state."""
    changes: dict[str, Any] = dict(plan.set)
    for name in plan.stamp:
        changes[name] = now
    if plan.timer is not None:
        _arm(changes, plan.timer, now)
    state = changes.get("state", record.state)
    if state != record.state:
        _enter(changes, record, state, now)
    ended = _change_attempt(changes, record, plan, now)
    if plan.op:
        changes["op_id"] = op_key(plan)
        changes["op_state"] = state
        changes["op_wake_at"] = changes.get("wake_at", record.wake_at)
    after = changed_record(record, changes, now)
    entry = entry_of(plan.event, record, after, now) if plan.event else None
    is_taken = record.state == "active" and state != "active" and plan.guard.fence is None
    taken_from = record.worker_instance_id if is_taken else ""
    return Transition(record, after, ended, entry, taken_from)


def changed_record(record: Record, changes: dict[str, Any], now: int) -> Record:
    """The record with these changes and the values that derive from them."""
    changes["version"] = record.version + 1
    changes["changed_at"] = now
    state = changes.get("state", record.state)
    due_at = 0
    for name in counting_instants(state):
        instant = changes[name] if name in changes else getattr(record, name)
        if instant and (not due_at or instant < due_at):
            due_at = instant
    changes["due_at"] = due_at
    if "priority" in changes or "rank_shift" in changes:
        changes["rank"] = rank_of(
            changes.get("priority", record.priority),
            record.created_at,
            changes.get("rank_shift", record.rank_shift),
        )
    return _replace(record, **changes)


# Durations of a timer with the instants they become, and instants as they are given.
TIMERS: Final = (
    ("lease_for", "lease_until"),
    ("attempt_for", "attempt_until"),
    ("wake_in", "wake_at"),
    ("deadline_in", "deadline_at"),
    ("pending_in", "pending_until"),
    ("grant_for", "grant_until"),
)
NAMED: Final = (
    ("wake_at", "wake_at"),
    ("deadline_at", "deadline_at"),
    ("pending_at", "pending_until"),
)


def _arm(changes: dict[str, Any], timer: Timer, now: int) -> None:
    for duration, instant in TIMERS:
        length = getattr(timer, duration)
        if length is not None:
            changes[instant] = now + length
    # 0 is "unset" in a record, so an instant somebody named is never stored as 0.
    for named, instant in NAMED:
        given = getattr(timer, named)
        if given is not None:
            changes[instant] = max(1, given)


def _enter(changes: dict[str, Any], record: Record, state: str, now: int) -> None:
    """What entering a state clears, whatever the plan: fields that mean nothing there."""
    changes["moved_at"] = now
    changes.setdefault("reason", "")
    changes.setdefault("detail", "")
    if state in FINAL:
        changes.update(ENDED)
        changes["completed_at"] = now
        changes["purge_at"] = now + record.retention_ms
        return
    if state not in HELD:
        changes.update(RELEASED)
    if state != "suspended":
        changes.update(UNSUSPENDED)
    # A state that counts it keeps it: a delay is remembered while dependencies block.
    if state not in DUE["wake_at"]:
        changes["wake_at"] = 0
    if state not in DUE["attempt_until"]:
        changes["attempt_until"] = 0
    if state not in CLAIMABLE:
        changes.update(UNGRANTED)


def _change_attempt(
    changes: dict[str, Any], record: Record, plan: Plan, now: int
) -> Attempt | None:
    attempt = record.attempt
    if attempt is None:
        return None
    news: dict[str, Any] = {}
    if plan.close_stream:
        news["closed_at"] = attempt.closed_at or now
        news["closed_reason"] = plan.close_stream
    match plan.attempt:
        case EndAttempt(state, reason, category):
            news.update(state=state, ended_at=now, failure_reason=reason, failure_category=category)
            if record.state in HELD and plan.event is not None:
                news["released_reason"] = plan.event.details.get("reason", "")
            changes["attempt"] = None
            return _replace(attempt, **news)
        case PauseAttempt(suspension_id):
            news.update(state="suspended", suspended_at=now, suspension_id=suspension_id)
            if record.attempt_until:
                changes["attempt_left_ms"] = max(0, record.attempt_until - now)
    if news:
        changes["attempt"] = _replace(attempt, **news)
    return None
