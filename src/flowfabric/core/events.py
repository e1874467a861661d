"""Entries of the durable log, and the history of one execution derived from what is kept."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from flowfabric.core.plan import Event, Family
from flowfabric.core.record import NO_ATTEMPT, Attempt, Record
from flowfabric.core.states import HELD


class LogEntry(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True):
    """One change as subscribers read it."""

    at: int
    execution_id: str = ""
    flow_id: str = ""
    namespace: str = ""
    kind: str
    families: tuple[Family, ...]
    lease_id: str = ""
    lease_epoch: int = 0
    attempt_id: str = ""
    attempt_index: int = NO_ATTEMPT
    worker_id: str = ""
    worker_instance_id: str = ""
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    details: Mapping[str, str] = msgspec.field(default_factory=dict)


def entry_of(event: Event, holder: Record, record: Record, now: int) -> LogEntry | None:
    """The entry an event becomes: `holder` is the record whose lease it is about.

    A plan made without reading does not know whether anybody held the record: when nobody did, the
    family `lease` is dropped here. The epoch stays: it orders entries of the same instant.
    """
    held = holder.state in HELD
    families = event.families
    if not held and event.kind == "released":
        families = tuple(family for family in families if family != "lease")
        if not families:
            return None
    return LogEntry(
        at=now,
        execution_id=record.execution_id,
        flow_id=record.flow_id,
        namespace=record.namespace,
        kind=event.kind,
        families=families,
        lease_id=holder.lease_id if held else "",
        lease_epoch=holder.lease_epoch,
        attempt_id=holder.attempt_id if held else "",
        attempt_index=holder.attempt_index if held else NO_ATTEMPT,
        worker_id=holder.worker_id if held else "",
        worker_instance_id=holder.worker_instance_id if held else "",
        tags=record.tags,
        details=event.details,
    )


def released(reason: str, outcome: str = "") -> Event:
    """A lease ended; with an outcome, so did its execution."""
    if outcome:
        return Event("released", ("completion", "lease"), {"outcome": outcome, "reason": reason})
    return Event("released", ("lease",), {"reason": reason})


def parked(detail: str) -> Event:
    """A holder gave its lease up because only a person can help; `detail` is what happened."""
    details = {"reason": SUSPENDED, "parked": NONDETERMINISM, "detail": detail}
    return Event("released", ("lease", "operator"), details)


def signal_event(signal_id: str, waitpoint_id: str, source_identity: str, effect: str) -> Event:
    """A signal was accepted, buffered, or recognised as a repeat."""
    details = {
        "signal_id": signal_id,
        "waitpoint_id": waitpoint_id,
        "source_identity": source_identity,
        "effect": effect,
    }
    return Event("signal", ("signal",), details)


SUSPENDED: Final = "suspend"
NONDETERMINISM: Final = "nondeterminism"

RESTARTED: Final = "restarted"

# Reasons of releases that also end an attempt: the history takes them from the ended attempt.
ENDINGS: Final = frozenset(
    {
        "completed",
        "failed_retry_scheduled",
        "failed_terminal",
        "cancelled",
        "max_reclaims_exceeded",
        "dependency_impossible",
        RESTARTED,
    }
)


# The reason of a release that expired an execution begins with EXPIRED; that of an acquisition that
# resumed an attempt ends with RESUMED.
EXPIRED: Final = "expired:"
RESUMED: Final = "_resumed"


def is_ending(reason: str) -> bool:
    return reason in ENDINGS or reason.startswith(EXPIRED)


def is_kept(entry: LogEntry) -> bool:
    """Whether the entry is stored with the record, because no attempt will show it."""
    if entry.kind == "acquired":
        return entry.details.get("reason", "").endswith(RESUMED)
    if entry.kind == "released":
        return not is_ending(entry.details.get("reason", ""))
    return "lease" in entry.families


class HistoryEntry(msgspec.Struct, frozen=True):
    """One lease event of an execution; every value is text."""

    event: str
    ts: int
    fields: Mapping[str, str]


def history_of(
    record: Record, ended: Iterable[Attempt], kept: Iterable[LogEntry]
) -> list[HistoryEntry]:
    """The lease history from attempts and kept entries, oldest first."""
    attempts = [*ended, *([record.attempt] if record.attempt else [])]
    rows = [_kept(entry) for entry in kept]
    for attempt in attempts:
        if attempt.type != "reclaim":
            rows.append(_acquired(attempt))
        if attempt.released_reason:
            rows.append(_released(attempt))
    rows.sort(key=lambda row: (row[0], row[1], row[2]))
    return [row[3] for row in rows]


_Row = tuple[int, int, int, HistoryEntry]
# Order of events that share an instant and an epoch: a lease begins before it ends.
_STEP: Final = {"reclaimed": 0, "acquired": 0, "expired": 1, "revoked": 1, "released": 2}


def _row(ts: int, epoch: int, event: str, fields: Mapping[str, object]) -> _Row:
    texts = {name: str(value) for name, value in fields.items() if value != ""}
    return ts, epoch, _STEP.get(event, 3), HistoryEntry(event, ts, texts)


def _acquired(attempt: Attempt) -> _Row:
    epoch = attempt.first_lease_epoch or attempt.lease_epoch
    fields = {
        "lease_id": attempt.first_lease_id or attempt.lease_id,
        "lease_epoch": epoch,
        "attempt_id": attempt.attempt_id,
        "attempt_index": attempt.index,
        "worker_id": attempt.first_worker_id or attempt.worker_id,
        "worker_instance_id": attempt.first_instance_id or attempt.worker_instance_id,
        "reason": attempt.acquired_reason,
    }
    return _row(attempt.started_at, epoch, "acquired", fields)


def _released(attempt: Attempt) -> _Row:
    fields = {
        "lease_id": attempt.lease_id,
        "lease_epoch": attempt.lease_epoch,
        "attempt_index": attempt.index,
        "worker_instance_id": attempt.worker_instance_id,
        "reason": attempt.released_reason,
    }
    return _row(attempt.ended_at, attempt.lease_epoch, "released", fields)


def _kept(entry: LogEntry) -> _Row:
    index = "" if entry.attempt_index == NO_ATTEMPT else entry.attempt_index
    fields: dict[str, object] = {
        "lease_id": entry.lease_id,
        "lease_epoch": entry.lease_epoch if entry.lease_id else "",
        "attempt_id": entry.attempt_id,
        "attempt_index": index,
        "worker_id": entry.worker_id,
        "worker_instance_id": entry.worker_instance_id,
        **entry.details,
    }
    return _row(entry.at, entry.lease_epoch, entry.kind, fields)
