"""Accepting a signal: buffered at a pending waitpoint, counted at an active one, or a repeat."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from flowfabric.core.documents import (
    SUSPENSION,
    Document,
    signal_key_name,
    signal_name,
    waitpoint_name,
)
from flowfabric.core.evaluation import evaluate
from flowfabric.core.events import signal_event
from flowfabric.core.plan import Event, Guard, Plan, Timer
from flowfabric.core.policy import read_policy
from flowfabric.core.record import Record
from flowfabric.core.rules.resumes import resume_change, resume_delay, resumed, while_suspended
from flowfabric.core.states import FINAL, STATES
from flowfabric.core.suspension_documents import open_suspension, write_document
from flowfabric.core.suspensions import (
    NEVER_COMMITTED,
    NOW,
    Signal,
    SignalKey,
    Waitpoint,
    facts_of,
    waitpoint_state,
)
from flowfabric.errors import (
    PendingWaitpointExpired,
    SignalLimitExceeded,
    TargetNotSignalable,
    WaitpointClosed,
)

BUFFERED: Final = "buffered_for_pending_waitpoint"
DEDUPED: Final = "deduped"

_replace = msgspec.structs.replace


class Target(msgspec.Struct, frozen=True):
    """What a signal meets: the record, its documents, and the waitpoint it names."""

    record: Record
    now: int
    waitpoint: Waitpoint
    documents: Mapping[str, Document]


class Terms(msgspec.Struct, frozen=True):
    """What a sender may ask for besides; a limit of its own can only be lower than the policy's."""

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
    """Nothing changes but the log."""
    plan = Plan(
        target=record.execution_id,
        rule="note",
        guard=Guard(frozenset[str](STATES)),
        event=_event(_replace(signal, signal_id=existing_signal_id), DEDUPED),
    )
    return DeliveryDecision(plan, Duplicate(existing_signal_id))


def deliver(target: Target, signal: Signal, terms: Terms) -> DeliveryDecision:
    """Accept a signal that is new and authenticated."""
    is_pending = _check_target(target)
    _check_limit(target.record, terms.max_signals)
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


def _check_limit(record: Record, lower: int) -> None:
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
        event=_event(signal, signal.observed_effect),
    )
    return DeliveryDecision(plan, Accepted(signal.signal_id, signal.observed_effect))


def _count(target: Target, signal: Signal, terms: Terms) -> DeliveryDecision:
    """Let the condition look at the signal, and resume if that was what it waited for."""
    record = target.record
    suspension = open_suspension(record, target.documents)
    facts = facts_of(signal, target.waitpoint.waitpoint_key)
    verdict = evaluate(suspension.resume_condition, suspension.evaluation, facts)
    signal = _replace(signal, matched=verdict.matched, observed_effect=verdict.effect)
    after = _replace(suspension, evaluation=verdict.evaluation, last_signal_at=NOW)
    change: dict[str, Any] = {}
    timer: Timer | None = None
    if verdict.satisfied:
        after = resumed(after, signal.signal_id)
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
        event=_event(signal, verdict.effect),
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


def _event(signal: Signal, effect: str) -> Event:
    return signal_event(signal.signal_id, signal.waitpoint_id, signal.source_identity, effect)
