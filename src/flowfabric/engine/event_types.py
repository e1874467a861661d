"""Events as subscribers receive them, and how one entry of the log becomes them.

Words of the log that this release does not know are passed on as `Other`, never refused.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Literal, get_args

import msgspec

from flowfabric.backend.types import StoredEvent
from flowfabric.core.events import LogEntry
from flowfabric.core.plan import Family
from flowfabric.errors import Corruption

FAMILIES: Final[tuple[Family, ...]] = get_args(Family)


class Other(msgspec.Struct, frozen=True):
    """A word that is not in the list, as it was logged."""

    text: str


Outcome = Literal["success", "failure", "cancelled", "expired", "skipped"]
LeaseKind = Literal["acquired", "released", "expired", "reclaimed", "revoked", "replay_initiated"]
RevokedBy = Literal["operator", "reconciler", "backend"]
Effect = Literal["satisfied", "buffered", "deduped"]

_OUTCOMES: Final[Mapping[str, Outcome]] = {
    "success": "success",
    "failed": "failure",
    "failure": "failure",
    "cancelled": "cancelled",
    "expired": "expired",
    "skipped": "skipped",
}
_EFFECTS: Final[Mapping[str, Effect]] = {
    "resume_condition_satisfied": "satisfied",
    "buffered_for_pending_waitpoint": "buffered",
    "deduped": "deduped",
}
_REVOKERS: Final[Mapping[str, RevokedBy]] = {"reconciler": "reconciler", "backend": "backend"}


class CompletionEvent(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="family", tag="completion"
):
    """An execution ended, whatever ended it."""

    cursor: bytes
    execution_id: str
    flow_id: str | None = None
    outcome: Outcome | Other
    at: int


class LeaseEvent(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="family", tag="lease"
):
    """A lease began or ended; only the fields its kind has are set."""

    cursor: bytes
    execution_id: str
    kind: LeaseKind | Other
    at: int
    lease_id: str | None = None
    worker_instance_id: str | None = None
    reason: str | None = None
    prev_owner: str | None = None
    new_lease_id: str | None = None
    new_owner: str | None = None
    revoked_by: RevokedBy | None = None
    replay_count: int | None = None
    replay_type: str | None = None


class SignalEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="family", tag="signal"):
    """A signal was accepted, buffered or recognised as a repeat."""

    cursor: bytes
    execution_id: str
    signal_id: str
    waitpoint_id: str | None = None
    source_identity: str | None = None
    effect: Effect | Other
    at: int


class OperatorEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="family", tag="operator"):
    """Somebody intervened, on an execution or, without one, on a flow."""

    cursor: bytes
    execution_id: str | None = None
    flow_id: str | None = None
    event_type: str
    details: Mapping[str, str]
    at: int


class FlowEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="family", tag="flow"):
    """A flow came to an end."""

    cursor: bytes
    flow_id: str
    event: str
    state: str
    at: int


Event = CompletionEvent | LeaseEvent | SignalEvent | OperatorEvent | FlowEvent


def events_of(
    stored: StoredEvent, wanted: frozenset[Family], before: bytes
) -> Iterator[Event | Corruption]:
    """One event per family asked for. Only the last carries the entry's own cursor, the others
    the position `before` it, so that resuming between them repeats and never loses one."""
    families = [family for family in stored.entry.families if family in wanted]
    for place, family in enumerate(families, start=1):
        cursor = stored.cursor if place == len(families) else before
        try:
            yield _TYPED[family](stored.entry, cursor)
        except (LookupError, ValueError) as fault:
            at = f"{stored.entry.kind} at {stored.entry.at}"
            yield Corruption(f"log: {family}: {at} cannot be read: {fault}", cursor=cursor)


def _completion(entry: LogEntry, cursor: bytes) -> Event:
    outcome = entry.details["outcome"]
    return CompletionEvent(
        cursor=cursor,
        execution_id=_needed(entry.execution_id, "execution_id"),
        flow_id=entry.flow_id or None,
        outcome=_OUTCOMES.get(outcome) or Other(outcome),
        at=entry.at,
    )


def _lease(entry: LogEntry, cursor: bytes) -> Event:
    known = _LEASE_FIELDS.get(entry.kind)
    return LeaseEvent(
        cursor=cursor,
        execution_id=_needed(entry.execution_id, "execution_id"),
        kind=_LEASE_KINDS.get(entry.kind) or Other(entry.kind),
        at=entry.at,
        **(known(entry) if known else {}),
    )


def _held(entry: LogEntry) -> dict[str, Any]:
    return {
        "lease_id": entry.lease_id or None,
        "worker_instance_id": entry.worker_instance_id or None,
        "reason": entry.details.get("reason") or None,
    }


def _expired(entry: LogEntry) -> dict[str, Any]:
    return {
        "lease_id": entry.lease_id or None,
        "prev_owner": entry.worker_instance_id or None,
    }


def _reclaimed(entry: LogEntry) -> dict[str, Any]:
    return {
        "new_lease_id": entry.details.get("new_lease_id") or None,
        "new_owner": entry.worker_instance_id or None,
    }


def _revoked(entry: LogEntry) -> dict[str, Any]:
    revoker = _REVOKERS.get(entry.details.get("reason", ""), "operator")
    return {"lease_id": entry.lease_id or None, "revoked_by": revoker}


def _replayed(entry: LogEntry) -> dict[str, Any]:
    return {
        "replay_count": int(entry.details["replay_count"]),
        "replay_type": entry.details["replay_type"],
    }


_LEASE_KINDS: Final[Mapping[str, LeaseKind]] = {kind: kind for kind in get_args(LeaseKind)}
_LEASE_FIELDS: Final[Mapping[str, Callable[[LogEntry], dict[str, Any]]]] = {
    "acquired": _held,
    "released": _held,
    "expired": _expired,
    "reclaimed": _reclaimed,
    "revoked": _revoked,
    "replay_initiated": _replayed,
}


def _signal(entry: LogEntry, cursor: bytes) -> Event:
    details = entry.details
    effect = details["effect"]
    return SignalEvent(
        cursor=cursor,
        execution_id=_needed(entry.execution_id, "execution_id"),
        signal_id=details["signal_id"],
        waitpoint_id=details.get("waitpoint_id") or None,
        source_identity=details.get("source_identity") or None,
        effect=_EFFECTS.get(effect) or Other(effect),
        at=entry.at,
    )


# What a replay tells as an operator's act; the lease family tells the rest.
_REPLAY_DETAILS: Final = ("branch", "groups_reset")


def _operator(entry: LogEntry, cursor: bytes) -> Event:
    event_type, details = entry.kind, entry.details
    if entry.kind == "replay_initiated":
        event_type = "replayed"
        details = {name: entry.details[name] for name in _REPLAY_DETAILS}
    return OperatorEvent(
        cursor=cursor,
        execution_id=entry.execution_id or None,
        flow_id=None if _has_subject(entry) else _needed(entry.flow_id, "flow_id"),
        event_type=event_type,
        details=details,
        at=entry.at,
    )


def _has_subject(entry: LogEntry) -> bool:
    """Whether the entry is about an execution or a budget, and so needs no flow."""
    return bool(entry.execution_id or entry.details.get("budget_id"))


def _flow(entry: LogEntry, cursor: bytes) -> Event:
    return FlowEvent(
        cursor=cursor,
        flow_id=_needed(entry.flow_id, "flow_id"),
        event=entry.kind,
        state=entry.details["state"],
        at=entry.at,
    )


_TYPED: Final[Mapping[Family, Callable[[LogEntry, bytes], Event]]] = {
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
