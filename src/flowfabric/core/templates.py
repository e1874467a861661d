"""The plans that settling writes by itself: release, skip, cancel a sibling. Data, so that every
store can carry them along."""

from typing import Final

from flowfabric.core.plan import EndAttempt, Event, Guard, Plan
from flowfabric.core.record import Record
from flowfabric.core.states import LIVE

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
