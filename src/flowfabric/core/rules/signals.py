"""How a suspension ends: by an operator, by its timeout, or by a signal. A signal is buffered at a
pending waitpoint, counted at an active one, or a repeat."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID, uuid5

import msgspec

from flowfabric.core.conditions import SATISFIED, evaluate
from flowfabric.core.documents import (
    SUSPENSION,
    Document,
    signal_key_name,
    signal_name,
    waitpoint_name,
)
from flowfabric.core.events import EXPIRED, released, signal_event
from flowfabric.core.plan import EndAttempt, Event, Guard, Plan, Timer
from flowfabric.core.policy import read_policy
from flowfabric.core.record import Record
from flowfabric.core.states import FINAL, OUTCOMES, STATES, AttemptState, State
from flowfabric.core.suspensions import (
    AUTO_RESUMED,
    NEVER_COMMITTED,
    NOW,
    RESUMED,
    Signal,
    SignalKey,
    Suspension,
    Waitpoint,
    carried,
    facts_of,
    open_suspension,
    waitpoint_state,
    write_document,
)
from flowfabric.errors import (
    PendingWaitpointExpired,
    SignalLimitExceeded,
    TargetNotSignalable,
    WaitpointClosed,
)

_replace = msgspec.structs.replace


TIMEOUT: Final = "suspension_timeout"
AUTO_RESUME: Final = "auto_resume_with_timeout_signal"
TIMEOUT_BEHAVIORS: Final = ("fail", "cancel", "expire", AUTO_RESUME, "escalate")
BEHAVIOR_ALIASES: Final = {"auto_resume": AUTO_RESUME}


def while_suspended(record: Record) -> Guard:
    """For decisions about the suspension that was read, and no other."""
    return Guard(
        frozenset({"suspended"}), version=record.version, suspension_id=record.suspension_id
    )


def resume_delay(suspension: Suspension | None, asked: int | None) -> int:
    """The delay that the resuming call asks for, else the policy's."""
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


def resumed(suspension: Suspension, closer: Signal | None = None) -> Suspension:
    """The suspension's side; with it all its waitpoints are closed."""
    return _replace(
        suspension,
        satisfied_at=NOW,
        closed_at=NOW,
        close_reason=RESUMED,
        closer_signal_id=closer.signal_id if closer else "",
        closer=carried(suspension, closer) if closer else None,
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
    """What its timeout does; an unknown behaviour fails the execution."""
    named = BEHAVIOR_ALIASES.get(suspension.timeout_behavior, suspension.timeout_behavior)
    return named if named in TIMEOUT_BEHAVIORS else "fail"


def time_out_suspension(record: Record, suspension: Suspension) -> Plan:
    """Act on the timeout of a suspension."""
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
    return Plan(
        target=record.execution_id,
        rule="timeout",
        guard=while_suspended(record),
        set=change,
        attempt=EndAttempt(ending.attempt, reason),
        close_stream=TIMEOUT,
        documents={SUSPENSION: write_document(over)},
        event=released(ending.released, OUTCOMES[ending.state]),
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
        suspension, reason_code="waiting_for_operator_review", timeout_at=0, timeout_behavior=""
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


BUFFERED: Final = "buffered_for_pending_waitpoint"
DEDUPED: Final = "deduped"


class Target(msgspec.Struct, frozen=True):
    """Where a signal arrives: the record, its documents, and the waitpoint it names."""

    record: Record
    now: int
    waitpoint: Waitpoint
    documents: Mapping[str, Document]


class Terms(msgspec.Struct, frozen=True):
    """Options of the sender; its limit can only be lower than the policy's."""

    dedup_ttl_ms: int = 86_400_000
    resume_delay_ms: int | None = None
    max_signals: int = 0


class Accepted(msgspec.Struct, frozen=True, tag_field="outcome", tag="accepted"):
    signal_id: str
    effect: str


class Duplicate(msgspec.Struct, frozen=True, tag_field="outcome", tag="duplicate"):
    """The signal had arrived before, as this one."""

    existing_signal_id: str


class DeliveryDecision(NamedTuple):
    plan: Plan
    answer: Accepted | Duplicate


def repeat(record: Record, signal: Signal, existing_signal_id: str) -> DeliveryDecision:
    """Answer a repeated signal; only the log changes."""
    plan = Plan(
        target=record.execution_id,
        rule="note",
        guard=Guard(frozenset[str](STATES)),
        event=signal_event_of(_replace(signal, signal_id=existing_signal_id), DEDUPED),
    )
    return DeliveryDecision(plan, Duplicate(existing_signal_id))


def deliver(target: Target, signal: Signal, terms: Terms) -> DeliveryDecision:
    """Accept a signal that is new and authenticated."""
    is_pending = _check_target(target)
    check_limit(target.record, terms.max_signals)
    numbered = _replace(signal, seq=target.record.signal_count + 1)
    if is_pending:
        return _buffer(target, _replace(numbered, observed_effect=BUFFERED), terms)
    return _count(target, numbered, terms)


def _check_target(target: Target) -> bool:
    """Whether the waitpoint is pending; refused unless it is that or active."""
    record, waitpoint = target.record, target.waitpoint
    if record.state in FINAL:
        raise TargetNotSignalable(f"{record.execution_id} is {record.state}")
    state = waitpoint_state(record, waitpoint, target.now)
    if state != "closed":
        return state == "pending"
    if waitpoint.state == "pending" or waitpoint.close_reason == NEVER_COMMITTED:
        raise PendingWaitpointExpired(f"waitpoint {waitpoint.waitpoint_id} was not used in time")
    if record.state == "suspended":
        raise WaitpointClosed(f"waitpoint {waitpoint.waitpoint_id} is closed")
    raise TargetNotSignalable(f"{record.execution_id} is {record.state}, not suspended")


def check_limit(record: Record, lower: int = 0) -> None:
    """Refuse more signals than the policy allows; a sender's own limit can only be lower."""
    limit = read_policy(record.policy).max_signals_per_execution
    if lower:
        limit = min(limit, lower) if limit else lower
    if limit and record.signal_count >= limit:
        raise SignalLimitExceeded(f"{record.execution_id} has received {limit} signals")


def _buffer(target: Target, signal: Signal, terms: Terms) -> DeliveryDecision:
    """Keep a signal for the suspend that will use its waitpoint."""
    record = target.record
    plan = Plan(
        target=record.execution_id,
        rule="signal",
        guard=Guard(frozenset({record.state}), version=record.version),
        set={"signal_count": signal.seq},
        documents=_documents(target.waitpoint, signal, terms),
        event=signal_event_of(signal, signal.observed_effect),
    )
    return DeliveryDecision(plan, Accepted(signal.signal_id, signal.observed_effect))


def _count(target: Target, signal: Signal, terms: Terms) -> DeliveryDecision:
    """Evaluate the condition with the signal, and resume if it is satisfied."""
    record = target.record
    suspension = open_suspension(record, target.documents)
    facts = facts_of(signal, target.waitpoint.waitpoint_key)
    verdict = evaluate(suspension.resume_condition, suspension.evaluation, facts)
    signal = _replace(signal, matched=verdict.matched, observed_effect=verdict.effect)
    after = _replace(suspension, evaluation=verdict.evaluation, last_signal_at=NOW)
    change: dict[str, Any] = {}
    timer: Timer | None = None
    if verdict.satisfied:
        after = resumed(after, signal)
        delay = resume_delay(suspension, terms.resume_delay_ms)
        change, timer = resume_change(delay, f" after signal {signal.signal_name}")
    plan = Plan(
        target=record.execution_id,
        rule="signal",
        guard=while_suspended(record),
        set={"signal_count": signal.seq, **change},
        timer=timer,
        documents={
            SUSPENSION: write_document(after),
            **_documents(target.waitpoint, signal, terms),
        },
        event=signal_event_of(signal, verdict.effect),
    )
    return DeliveryDecision(plan, Accepted(signal.signal_id, verdict.effect))


def _documents(waitpoint: Waitpoint, signal: Signal, terms: Terms) -> dict[str, bytes]:
    visited = _replace(
        waitpoint,
        signal_count=waitpoint.signal_count + 1,
        matched_signal_count=waitpoint.matched_signal_count + signal.matched,
        last_signal_at=NOW,
    )
    own = waitpoint.waitpoint_id
    documents = {
        waitpoint_name(own): write_document(visited),
        signal_name(own, signal.signal_id): write_document(signal),
    }
    if signal.idempotency_key and terms.dedup_ttl_ms:
        entry = SignalKey(signal.signal_id, terms.dedup_ttl_ms)
        documents[signal_key_name(own, signal.idempotency_key)] = write_document(entry)
    return documents


def signal_event_of(signal: Signal, effect: str) -> Event:
    return signal_event(signal.signal_id, signal.waitpoint_id, signal.source_identity, effect)
