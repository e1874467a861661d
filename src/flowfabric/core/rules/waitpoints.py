"""Pending waitpoints: handed out before a suspend, closed by hand or by their end."""

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from flowfabric.core.documents import waitpoint_name
from flowfabric.core.fence import Fence
from flowfabric.core.plan import Guard, Plan, Timer
from flowfabric.core.record import Record
from flowfabric.core.rules.operators import at_version
from flowfabric.core.suspension_documents import write_document
from flowfabric.core.suspensions import NEVER_COMMITTED, NOW, Waitpoint, waitpoint_state
from flowfabric.errors import (
    InvalidWaitpointForExecution,
    PendingWaitpointExpired,
    WaitpointAlreadyExists,
    WaitpointNotFound,
    WaitpointNotOpen,
    WaitpointNotPending,
    WaitpointNotTokenBound,
)

_ACTIVE: Final = frozenset({"active"})
# Beyond this a sum is not exact in every store; the timer looks again then.
LONGEST_TIMER_MS: Final = 2**52

_replace = msgspec.structs.replace


def holders_guard(record: Record, fence: Fence) -> Guard:
    """For a holder whose plan depends on documents: a signal may have come since they were read."""
    return Guard(_ACTIVE, fence, version=record.version)


def check_unused(record: Record, stored: Waitpoint | None, now: int) -> None:
    """Whether a new waitpoint may have this id; a closed one makes room."""
    if stored is not None and waitpoint_state(record, stored, now) != "closed":
        raise WaitpointAlreadyExists(f"{stored.waitpoint_id} is {stored.state}")


def create_pending(record: Record, fence: Fence, waitpoint: Waitpoint, now: int) -> Plan:
    """Store a new pending waitpoint. Signals of a closed one with its id are not its own."""
    fresh = _replace(waitpoint, after_seq=record.signal_count)
    length = min(waitpoint.expires_in or 0, LONGEST_TIMER_MS)
    is_next = not record.pending_until or now + length < record.pending_until
    return Plan(
        target=record.execution_id,
        rule="waitpoint",
        guard=holders_guard(record, fence),
        timer=Timer(pending_in=length) if is_next else None,
        documents={waitpoint_name(waitpoint.waitpoint_id): write_document(fresh)},
    )


def check_usable(record: Record, waitpoint_id: str, found: Waitpoint | None, now: int) -> Waitpoint:
    """The pending waitpoint a suspend may use."""
    if found is None:
        raise WaitpointNotFound(f"{record.execution_id} has no waitpoint {waitpoint_id}")
    lapsed = found.state == "closed" and found.close_reason == NEVER_COMMITTED
    if found.state != "pending" and not lapsed:
        raise WaitpointNotPending(f"{waitpoint_id} is {found.state}")
    if found.attempt_index != record.attempt_index:
        raise InvalidWaitpointForExecution(f"{waitpoint_id} belongs to another attempt")
    if lapsed or found.expires_at <= now:
        raise PendingWaitpointExpired(f"{waitpoint_id} ended at {found.expires_at}")
    if found.token is None or not found.token.reveal():
        raise WaitpointNotTokenBound(f"{waitpoint_id} has no token")
    return found


def is_closed(record: Record, found: Waitpoint | None, waitpoint_id: str, now: int) -> bool:
    """Whether there is nothing left to close."""
    if found is None:
        raise WaitpointNotFound(f"{record.execution_id} has no waitpoint {waitpoint_id}")
    if found.state not in ("pending", "active", "closed", "expired"):
        raise WaitpointNotOpen(f"{waitpoint_id} is {found.state}")
    return waitpoint_state(record, found, now) == "closed"


def close(record: Record, guard: Guard, closing: Waitpoint, others: Iterable[Waitpoint]) -> Plan:
    """Close one waitpoint; a suspension it belongs to goes on with its others."""
    cleared, timer = next_expiry(closing.waitpoint_id, others)
    return Plan(
        target=record.execution_id,
        rule="waitpoint",
        guard=guard,
        set=cleared,
        timer=timer,
        documents={waitpoint_name(closing.waitpoint_id): write_document(closing)},
    )


def closed(waitpoint: Waitpoint, reason: str) -> Waitpoint:
    return _replace(waitpoint, state="closed", closed_at=NOW, close_reason=reason)


def next_expiry(
    leaving: str, waitpoints: Iterable[Waitpoint]
) -> tuple[dict[str, Any], Timer | None]:
    """What becomes of the timer when one waitpoint is pending no more."""
    left = [
        one.expires_at
        for one in waitpoints
        if one.state == "pending" and one.waitpoint_id != leaving
    ]
    return ({}, Timer(pending_at=min(left))) if left else ({"pending_until": 0}, None)


def expire_pending(record: Record, waitpoints: Iterable[Waitpoint], now: int) -> Plan:
    """Close the pending waitpoints whose time is up, and wait for the next one."""
    pending = [one for one in waitpoints if one.state == "pending"]
    due = [one for one in pending if one.expires_at <= now]
    left = [one.expires_at for one in pending if one.expires_at > now]
    return Plan(
        target=record.execution_id,
        rule="waitpoint",
        guard=at_version(record),
        set={} if left else {"pending_until": 0},
        timer=Timer(pending_at=min(left)) if left else None,
        documents={
            waitpoint_name(one.waitpoint_id): write_document(closed(one, NEVER_COMMITTED))
            for one in due
        },
    )
