"""How one entry of the log becomes the events that its readers receive.

A word of the log that this release does not know is passed on as it is, never refused.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from flowfabric.backend.types import StoredEvent
from flowfabric.core.events import LogEntry
from flowfabric.core.pages import to_text
from flowfabric.core.plan import Family
from flowfabric.operations.events import (
    CompletionEvent,
    CorruptionEvent,
    Event,
    FlowEvent,
    LeaseEvent,
    OperatorEvent,
    SignalEvent,
)

# Words of the log that readers know by another name.
_OUTCOMES: Final[Mapping[str, str]] = {"failed": "failure"}
_EFFECTS: Final[Mapping[str, str]] = {
    "resume_condition_satisfied": "satisfied",
    "buffered_for_pending_waitpoint": "buffered",
}
_REVOKERS: Final[Mapping[str, str]] = {"reconciler": "reconciler", "backend": "backend"}


def events_of(stored: StoredEvent, wanted: frozenset[Family], before: bytes) -> Iterator[Event]:
    """One event per family asked for. Only the last carries the entry's own cursor, the others
    the position `before` it, so that resuming between them repeats and never loses one."""
    families = [family for family in stored.entry.families if family in wanted]
    for place, family in enumerate(families, start=1):
        cursor = to_text(stored.cursor if place == len(families) else before)
        try:
            yield _TYPED[family](stored.entry, cursor)
        except (LookupError, ValueError) as fault:
            at = f"{stored.entry.kind} at {stored.entry.at}"
            reason = f"log: {family}: {at} cannot be read: {fault}"
            yield CorruptionEvent(cursor=cursor, reason=reason)


def _completion(entry: LogEntry, cursor: str) -> Event:
    outcome = entry.details["outcome"]
    return CompletionEvent(
        cursor=cursor,
        execution_id=_needed(entry.execution_id, "execution_id"),
        flow_id=entry.flow_id,
        outcome=_OUTCOMES.get(outcome, outcome),
        at=entry.at,
    )


def _lease(entry: LogEntry, cursor: str) -> Event:
    known = _LEASE_FIELDS.get(entry.kind)
    return LeaseEvent(
        cursor=cursor,
        execution_id=_needed(entry.execution_id, "execution_id"),
        kind=entry.kind,
        at=entry.at,
        **(known(entry) if known else {}),
    )


def _held(entry: LogEntry) -> dict[str, Any]:
    return {
        "lease_id": entry.lease_id,
        "worker_instance_id": entry.worker_instance_id,
        "reason": entry.details.get("reason", ""),
    }


def _expired(entry: LogEntry) -> dict[str, Any]:
    return {
        "lease_id": entry.lease_id,
        "prev_owner": entry.worker_instance_id,
    }


def _reclaimed(entry: LogEntry) -> dict[str, Any]:
    return {
        "new_lease_id": entry.details.get("new_lease_id", ""),
        "new_owner": entry.worker_instance_id,
    }


def _revoked(entry: LogEntry) -> dict[str, Any]:
    revoker = _REVOKERS.get(entry.details.get("reason", ""), "operator")
    return {"lease_id": entry.lease_id, "revoked_by": revoker}


def _replayed(entry: LogEntry) -> dict[str, Any]:
    return {
        "replay_count": int(entry.details["replay_count"]),
        "replay_type": entry.details["replay_type"],
    }


_LEASE_FIELDS: Final[Mapping[str, Callable[[LogEntry], dict[str, Any]]]] = {
    "acquired": _held,
    "released": _held,
    "expired": _expired,
    "reclaimed": _reclaimed,
    "revoked": _revoked,
    "replay_initiated": _replayed,
}


def _signal(entry: LogEntry, cursor: str) -> Event:
    details = entry.details
    effect = details["effect"]
    return SignalEvent(
        cursor=cursor,
        execution_id=_needed(entry.execution_id, "execution_id"),
        signal_id=details["signal_id"],
        waitpoint_id=details.get("waitpoint_id", ""),
        source_identity=details.get("source_identity", ""),
        effect=_EFFECTS.get(effect, effect),
        at=entry.at,
    )


# What a replay tells as an operator's act; the lease family tells the rest.
_REPLAY_DETAILS: Final = ("branch", "groups_reset")


def _operator(entry: LogEntry, cursor: str) -> Event:
    event_type, details = entry.kind, entry.details
    if entry.kind == "replay_initiated":
        event_type = "replayed"
        details = {name: entry.details[name] for name in _REPLAY_DETAILS}
    return OperatorEvent(
        cursor=cursor,
        execution_id=entry.execution_id,
        flow_id="" if _has_subject(entry) else _needed(entry.flow_id, "flow_id"),
        event_type=event_type,
        details=dict(details),
        at=entry.at,
    )


def _has_subject(entry: LogEntry) -> bool:
    """Whether the entry is about an execution or a budget, and so needs no flow."""
    return bool(entry.execution_id or entry.details.get("budget_id"))


def _flow(entry: LogEntry, cursor: str) -> Event:
    return FlowEvent(
        cursor=cursor,
        flow_id=_needed(entry.flow_id, "flow_id"),
        event=entry.kind,
        state=entry.details["state"],
        at=entry.at,
    )


_TYPED: Final[Mapping[Family, Callable[[LogEntry, str], Event]]] = {
    "completion": _completion,
    "lease": _lease,
    "signal": _signal,
    "operator": _operator,
    "flow": _flow,
}


def _needed(value: str, field: str) -> str:
    if not value:
        raise ValueError(f"{field} is missing")
    return value
