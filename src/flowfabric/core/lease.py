"""What a claim writes: the lease on a record, and the reservation that may come before it."""

from typing import Any, Final, Literal

import msgspec

from flowfabric.core import events
from flowfabric.core.events import entry_of
from flowfabric.core.plan import OWN_PAUSES, Event
from flowfabric.core.record import BEGUN, CLAIMED, RESUMED, Attempt, Record
from flowfabric.core.states import ATTEMPT_TYPES, CLAIMABLE
from flowfabric.core.transition import Transition, changed_record

_replace = msgspec.structs.replace

GrantKind = Literal["claim", "resume", "reclaim"]

# What the history says of a resume that nobody gave a reason for.
CLAIM: Final = "claim"
# Why the stream of an attempt was closed whose lease was lost.
RECLAIMED: Final = "reclaimed"
# How long a claim keeps a record whose limits have to be asked first.
RESERVATION_MS: Final = 2_000
# How many more records than it may take a claim looks at.
SPARE_LOOKS: Final = 32
# How many records of a queue are read at once.
QUEUE_PAGE: Final = 64


class LeaseTerms(msgspec.Struct, frozen=True):
    """Who takes the lease, under which fresh ids, for how long, and what the history says."""

    worker_id: str
    worker_instance_id: str
    lease_id: str
    attempt_id: str
    lease_for: int
    reason: str = ""


class GrantTerms(msgspec.Struct, frozen=True):
    """Who a record is kept for, under which name, and for how long."""

    worker_id: str
    worker_instance_id: str
    grant_id: str
    grant_for: int
    note: str = ""


def grant_kind(record: Record) -> GrantKind:
    if record.state == "lost":
        return "reclaim"
    return "resume" if record.next == "resume" else "claim"


def has_live_grant(record: Record, now: int) -> bool:
    return record.grant_until > now


def may_lease(record: Record, now: int, grant_id: str, worker: tuple[str, str]) -> bool:
    """Whether this worker may take a named record: by its own live grant, or because none lives."""
    if record.state not in CLAIMABLE:
        return False
    if not grant_id:
        return not has_live_grant(record, now)
    return (
        record.grant_id == grant_id
        and (record.grant_worker, record.grant_instance) == worker
        and record.grant_until > now
    )


def is_exhausted(record: Record) -> bool:
    """Whether one more reclaim would pass the cap."""
    return record.state == "lost" and record.reclaim_count >= record.max_reclaim_count


def paused_by_suspension(record: Record) -> str:
    """The suspension a claim of this record resumes from; "" when something else paused it."""
    attempt = record.attempt
    if record.next != "resume" or attempt is None or attempt.suspension_id in OWN_PAUSES:
        return ""
    return attempt.suspension_id


def lease(record: Record, terms: LeaseTerms, now: int) -> Transition:
    """The record under a new lease, and the attempt this begins or goes on with."""
    epoch = record.lease_epoch + 1
    changes: dict[str, Any] = {
        "state": "active",
        "reason": "",
        "next": "",
        "moved_at": now,
        "started_at": record.started_at or now,
        "lease_epoch": epoch,
        "lease_id": terms.lease_id,
        "lease_ttl_ms": terms.lease_for,
        "lease_until": now + terms.lease_for,
        "lease_acquired_at": now,
        "lease_renewed_at": now,
        "worker_id": terms.worker_id,
        "worker_instance_id": terms.worker_instance_id,
        **CLAIMED,
    }
    if record.next == "resume":
        return _resume(record, terms, changes, now)
    return _begin(record, terms, changes, now)


def _resume(record: Record, terms: LeaseTerms, changes: dict[str, Any], now: int) -> Transition:
    attempt = record.attempt
    if attempt is not None:
        first = {
            "first_lease_id": attempt.first_lease_id or attempt.lease_id,
            "first_lease_epoch": attempt.first_lease_epoch or attempt.lease_epoch,
            "first_worker_id": attempt.first_worker_id or attempt.worker_id,
            "first_instance_id": attempt.first_instance_id or attempt.worker_instance_id,
        }
        changes["attempt"] = _replace(
            attempt,
            state="started",
            resumed_at=now,
            suspended_at=0,
            suspension_id="",
            lease_id=terms.lease_id,
            lease_epoch=changes["lease_epoch"],
            worker_id=terms.worker_id,
            worker_instance_id=terms.worker_instance_id,
            **first,
        )
    if record.attempt_timeout_ms:
        changes["attempt_until"] = now + record.attempt_left_ms
    changes.update(RESUMED)
    after = changed_record(record, changes, now)
    reason = (terms.reason or CLAIM) + events.RESUMED
    event = Event("acquired", ("lease",), {"reason": reason})
    return Transition(record, after, None, entry_of(event, after, after, now))


def _begin(record: Record, terms: LeaseTerms, changes: dict[str, Any], now: int) -> Transition:
    reclaiming = record.state == "lost"
    attempt = Attempt(
        index=record.attempt_count,
        attempt_id=terms.attempt_id,
        type=ATTEMPT_TYPES[record.next],
        started_at=now,
        lease_id=terms.lease_id,
        lease_epoch=changes["lease_epoch"],
        worker_id=terms.worker_id,
        worker_instance_id=terms.worker_instance_id,
        acquired_reason=terms.reason,
        previous_attempt=record.attempt_index if reclaiming else record.previous_attempt,
        lineage_reason=_why(record),
        lineage_requester=record.replay_requested_by if record.next == "replay" else "",
    )
    changes.update(
        attempt=attempt,
        attempt_index=attempt.index,
        attempt_id=attempt.attempt_id,
        attempt_type=attempt.type,
        attempt_count=record.attempt_count + 1,
        attempt_until=now + record.attempt_timeout_ms if record.attempt_timeout_ms else 0,
        **BEGUN,
    )
    if reclaiming:
        changes["reclaim_count"] = record.reclaim_count + 1
    after = changed_record(record, changes, now)
    ended = _interrupted(record, now) if reclaiming else None
    event = _reclaimed(record, after) if reclaiming else _acquired(terms)
    return Transition(record, after, ended, entry_of(event, after, after, now))


def _why(record: Record) -> str:
    """What made the attempt necessary, by the kind of claim that begins it."""
    match record.next:
        case "reclaim":
            return record.reason
        case "retry":
            return record.retry_reason
        case "replay":
            return record.replay_reason
        case _:
            return ""


def _acquired(terms: LeaseTerms) -> Event:
    return Event("acquired", ("lease",), {"reason": terms.reason} if terms.reason else {})


def _reclaimed(before: Record, after: Record) -> Event:
    details = {
        "old_lease_epoch": str(before.lease_epoch),
        "new_lease_id": after.lease_id,
        "new_lease_epoch": str(after.lease_epoch),
        "new_attempt_id": after.attempt_id,
        "new_attempt_index": str(after.attempt_index),
    }
    return Event("reclaimed", ("lease",), details)


def _interrupted(record: Record, now: int) -> Attempt | None:
    """The attempt whose lease was lost, ended because another one takes its place."""
    if record.attempt is None:
        return None
    return _replace(
        record.attempt,
        state="interrupted_reclaimed",
        ended_at=now,
        failure_reason=record.reason,
        closed_at=record.attempt.closed_at or now,
        closed_reason=RECLAIMED,
    )
