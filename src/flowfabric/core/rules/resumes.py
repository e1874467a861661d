"""How a suspension ends without a signal: by an operator, or by its timeout."""

from typing import Any, Final, NamedTuple
from uuid import UUID, uuid5

import msgspec

from flowfabric.core.documents import SUSPENSION, signal_name
from flowfabric.core.evaluation import SATISFIED
from flowfabric.core.events import EXPIRED, signal_event
from flowfabric.core.plan import EndAttempt, Event, Guard, Plan, Timer
from flowfabric.core.record import Record
from flowfabric.core.states import OUTCOMES, AttemptState, State
from flowfabric.core.suspension_documents import write_document
from flowfabric.core.suspensions import AUTO_RESUMED, NOW, RESUMED, Signal, Suspension

TIMEOUT: Final = "suspension_timeout"
AUTO_RESUME: Final = "auto_resume_with_timeout_signal"
TIMEOUT_BEHAVIORS: Final = ("fail", "cancel", "expire", AUTO_RESUME, "escalate")
BEHAVIOR_ALIASES: Final = {"auto_resume": AUTO_RESUME}

_replace = msgspec.structs.replace


def while_suspended(record: Record) -> Guard:
    """For decisions about the suspension that was read, and no other."""
    return Guard(
        frozenset({"suspended"}), version=record.version, suspension_id=record.suspension_id
    )


def resume_delay(suspension: Suspension | None, asked: int | None) -> int:
    """How long a resumed execution waits: the resuming call's word, else the policy's."""
    if asked is None and suspension is not None:
        asked = suspension.resume_policy.resume_delay_ms
    return asked or 0


def resume_change(delay_ms: int, cause: str = "") -> tuple[dict[str, Any], Timer | None]:
    """The record's side of a resume: it waits for a worker, now or after the delay."""
    if not delay_ms:
        return {"state": "waiting"}, None
    detail = f"resume delay {delay_ms}ms{cause}"
    goal = {"state": "delayed", "reason": "resume_delay", "detail": detail}
    return goal, Timer(wake_in=delay_ms)


def resumed(suspension: Suspension, closer_signal_id: str = "") -> Suspension:
    """The suspension's side; with it all its waitpoints are closed."""
    return _replace(
        suspension,
        satisfied_at=NOW,
        closed_at=NOW,
        close_reason=RESUMED,
        closer_signal_id=closer_signal_id,
    )


def resume(
    record: Record, suspension: Suspension | None, trigger_type: str, asked_delay: int | None
) -> Plan:
    """An operator ends the wait, whatever the condition says."""
    goal, timer = resume_change(resume_delay(suspension, asked_delay))
    documents: dict[str, bytes | None] = {}
    if suspension is not None:
        over = _replace(resumed(suspension), trigger_type=trigger_type)
        documents[SUSPENSION] = write_document(over)
    return Plan(
        target=record.execution_id,
        rule="resume",
        guard=while_suspended(record),
        set=goal,
        timer=timer,
        documents=documents,
    )


class _Ending(NamedTuple):
    """A timeout behaviour that ends the execution."""

    state: State
    attempt: AttemptState
    released: str


_ENDINGS: Final[dict[str, _Ending]] = {
    "fail": _Ending("failed", "ended_failure", "failed_terminal"),
    "cancel": _Ending("cancelled", "ended_cancelled", "cancelled"),
    "expire": _Ending("expired", "ended_failure", EXPIRED + TIMEOUT),
}


def behavior_of(suspension: Suspension) -> str:
    """What its timeout does; what is not known fails."""
    named = BEHAVIOR_ALIASES.get(suspension.timeout_behavior, suspension.timeout_behavior)
    return named if named in TIMEOUT_BEHAVIORS else "fail"


def time_out_suspension(record: Record, suspension: Suspension) -> Plan:
    """What the end of a suspension's time does to the execution."""
    match behavior_of(suspension):
        case "escalate":
            return _escalate(record, suspension)
        case behavior if behavior in _ENDINGS:
            return _end(record, suspension, behavior)
        case _:
            return _auto_resume(record, suspension)


def _end(record: Record, suspension: Suspension, behavior: str) -> Plan:
    ending = _ENDINGS[behavior]
    reason = f"{TIMEOUT}:{behavior}"
    change: dict[str, Any] = {"state": ending.state, "failure_reason": reason}
    if behavior == "cancel":
        change.update(cancellation_reason=TIMEOUT, cancelled_by="system_timeout")
    over = _replace(suspension, closed_at=NOW, close_reason=f"timed_out_{behavior}")
    details = {"outcome": OUTCOMES[ending.state], "reason": ending.released}
    return Plan(
        target=record.execution_id,
        rule="timeout",
        guard=while_suspended(record),
        set=change,
        attempt=EndAttempt(ending.attempt, reason),
        close_stream=TIMEOUT,
        documents={SUSPENSION: write_document(over)},
        event=Event("released", ("completion", "lease"), details),
    )


def _auto_resume(record: Record, suspension: Suspension) -> Plan:
    """Resume at once, with a signal that says why."""
    signal = _timeout_signal(record, suspension)
    over = _replace(
        suspension, closed_at=NOW, close_reason=AUTO_RESUMED, closer_signal_id=signal.signal_id
    )
    return Plan(
        target=record.execution_id,
        rule="timeout",
        guard=while_suspended(record),
        set={"state": "waiting", "signal_count": signal.seq},
        documents={
            SUSPENSION: write_document(over),
            signal_name(signal.waitpoint_id, signal.signal_id): write_document(signal),
        },
        event=signal_event(
            signal.signal_id, signal.waitpoint_id, signal.source_identity, SATISFIED
        ),
    )


def _timeout_signal(record: Record, suspension: Suspension) -> Signal:
    return Signal(
        # One suspension times out once, so its id makes the signal's.
        signal_id=str(uuid5(UUID(suspension.suspension_id), "timeout")),
        waitpoint_id=suspension.waitpoint_id,
        signal_name="timeout",
        signal_category="system",
        source_type="system",
        source_identity=TIMEOUT,
        seq=record.signal_count + 1,
        observed_effect=SATISFIED,
    )


def _escalate(record: Record, suspension: Suspension) -> Plan:
    """Leave it to a person. The waitpoints stay open, and from now on without an end."""
    after = _replace(
        suspension,
        reason_code="waiting_for_operator_review",
        timeout_at=0,
        timeout_behavior="",
    )
    return Plan(
        target=record.execution_id,
        rule="timeout",
        guard=while_suspended(record),
        set={
            "reason": "operator",
            "detail": f"suspension escalated: timeout at {suspension.timeout_at}",
            "wake_at": 0,
        },
        documents={SUSPENSION: write_document(after)},
    )
