"""Giving up the lease to wait for the outside, or finding that the wait is over already."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from flowfabric.core.condition_checks import check_keys
from flowfabric.core.conditions import completed
from flowfabric.core.documents import (
    SUSPENSION,
    signal_name,
    suspend_key_name,
    waitpoint_name,
)
from flowfabric.core.evaluation import Evaluation, evaluate
from flowfabric.core.fence import Fence
from flowfabric.core.handles import Handle
from flowfabric.core.plan import Event, Guard, PauseAttempt, Plan, Timer
from flowfabric.core.policy import read_policy
from flowfabric.core.record import Record
from flowfabric.core.rules.waitpoints import closed, holders_guard, next_expiry
from flowfabric.core.suspend_outcomes import (
    Details,
    Outcome,
    Satisfied,
    StoredOutcome,
    Suspended,
    details_of,
    given_up,
    write_outcome,
)
from flowfabric.core.suspension_documents import write_document
from flowfabric.core.suspensions import (
    NOW,
    RESUMED,
    ReceivedSignal,
    Signal,
    Suspension,
    Waitpoint,
    facts_of,
    received,
)

_ACTIVE: Final = frozenset({"active"})

# What a reason code makes of the record's reason; an unknown one waits for a signal.
REASONS: Final[Mapping[str, str]] = {
    "waiting_for_signal": "signal",
    "waiting_for_approval": "approval",
    "waiting_for_callback": "callback",
    "waiting_for_tool_result": "tool_result",
    "waiting_for_operator_review": "operator",
    "manual_pause": "operator",
    "paused_by_policy": "policy",
    "paused_by_budget": "budget",
    "step_boundary": "signal",
}

_replace = msgspec.structs.replace


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A suspend about to be made: by whom, what is stored of it, and where it is remembered."""

    execution_id: str
    fence: Fence
    op: str
    suspension: Suspension
    # The fresh waitpoints, the primary one first; none when the primary was pending.
    waitpoints: tuple[Waitpoint, ...]
    handle: Handle
    idempotency_key: str = ""


class Decided(NamedTuple):
    plan: Plan
    outcome: Outcome


def with_policy(suspension: Suspension, record: Record) -> Suspension:
    """The suspension with the execution policy's timeout where the call gave none."""
    policy = read_policy(record.policy).suspension_policy
    behavior, timeout_in = suspension.timeout_behavior or "fail", suspension.timeout_in
    has_own = suspension.timeout_at or timeout_in is not None
    if not has_own and policy is not None and policy.default_timeout_ms is not None:
        behavior = suspension.timeout_behavior or policy.timeout_behavior
        timeout_in = policy.default_timeout_ms
    return _replace(
        suspension,
        timeout_in=timeout_in,
        timeout_behavior=behavior,
        resume_condition=completed(suspension.resume_condition, behavior),
    )


def suspend(pause: Pause) -> Decided:
    """Suspend on waitpoints that begin now. Nothing stored has to be known for it."""
    documents = {waitpoint_name(one.waitpoint_id): write_document(one) for one in pause.waitpoints}
    change = _Change(Guard(_ACTIVE, pause.fence), {}, None, documents)
    return _suspended(pause, change, details_of(pause.suspension, pause.waitpoints))


class _Change(NamedTuple):
    """The parts of a plan that the ways to suspend fill differently; `timer` is the one of the
    pending waitpoints that are left."""

    guard: Guard
    set: Mapping[str, Any]
    timer: Timer | None
    documents: Mapping[str, bytes]


def _suspended(pause: Pause, change: _Change, details: Details) -> Decided:
    suspension = pause.suspension
    code = suspension.reason_code
    outcome = Suspended(details, pause.handle)
    stored = StoredOutcome(
        variant="Suspended",
        details=details,
        lease=given_up(pause.handle),
        timeout_at=suspension.timeout_at,
        timeout_in=suspension.timeout_in,
    )
    plan = Plan(
        target=pause.execution_id,
        rule="suspend",
        guard=change.guard,
        op=pause.op,
        set={
            "state": "suspended",
            "reason": REASONS.get(code, "signal"),
            "next": "resume",
            "detail": f"suspended: waitpoint {suspension.waitpoint_id} awaiting {code}",
            "suspension_id": suspension.suspension_id,
            "waitpoint_id": suspension.waitpoint_id,
            **change.set,
        },
        timer=_timeout(suspension, change.timer),
        attempt=PauseAttempt(suspension.suspension_id),
        documents={
            SUSPENSION: write_document(suspension),
            **change.documents,
            **_remembered(pause.idempotency_key, stored),
        },
        event=Event("released", ("lease",), {"reason": "suspend"}),
    )
    return Decided(plan, outcome)


def _timeout(suspension: Suspension, timer: Timer | None) -> Timer | None:
    if suspension.timeout_in is not None:
        return _replace(timer or Timer(), wake_in=suspension.timeout_in)
    if suspension.timeout_at:
        return _replace(timer or Timer(), wake_at=suspension.timeout_at)
    return timer


def _remembered(key: str, stored: StoredOutcome) -> dict[str, bytes]:
    return {suspend_key_name(key): write_outcome(stored)} if key else {}


def suspend_on_pending(
    record: Record,
    pause: Pause,
    pending: Waitpoint,
    buffered: Sequence[Signal],
    others: Iterable[Waitpoint],
) -> Decided:
    """Suspend on a waitpoint handed out before; the signals it was sent already count first."""
    check_keys((pending.waitpoint_key,), pause.suspension.resume_condition)
    judged = _judge(pause.suspension, pending, buffered)
    suspension = _replace(
        pause.suspension,
        waitpoint_key=pending.waitpoint_key,
        evaluation=judged.evaluation,
        last_signal_at=pending.last_signal_at,
    )
    pause = _replace(pause, suspension=suspension)
    after = _after(suspension, pending, judged)
    cleared, timer = next_expiry(pending.waitpoint_id, others)
    documents = {waitpoint_name(after.waitpoint_id): write_document(after), **judged.documents}
    change = _Change(holders_guard(record, pause.fence), cleared, timer, documents)
    details = details_of(suspension, (after,))
    if judged.is_satisfied:
        return Decided(_satisfied(pause, change, details), Satisfied(details, judged.satisfiers))
    return _suspended(pause, change, details)


def _after(suspension: Suspension, pending: Waitpoint, judged: "_Judged") -> Waitpoint:
    """The pending waitpoint once it is used: active, or closed because nothing has to wait."""
    matched = sum(one.matched for one in judged.signals)
    used = _replace(pending, matched_signal_count=matched, expires_at=0)
    if judged.is_satisfied:
        return _replace(closed(used, RESUMED), satisfied_at=NOW)
    return _replace(used, state="active", suspension_id=suspension.suspension_id, activated_at=NOW)


def _satisfied(pause: Pause, change: _Change, details: Details) -> Plan:
    """Nothing pauses: the holder keeps its lease and goes on."""
    suspension = pause.suspension
    stored = StoredOutcome(
        variant="AlreadySatisfied",
        details=details,
        satisfiers=suspension.evaluation.satisfiers,
        timeout_at=suspension.timeout_at,
        timeout_in=suspension.timeout_in,
    )
    return Plan(
        target=pause.execution_id,
        rule="suspend",
        guard=change.guard,
        op=pause.op,
        set=change.set,
        timer=change.timer,
        documents={
            **change.documents,
            **_remembered(pause.idempotency_key or pause.op, stored),
        },
    )


class _Judged(NamedTuple):
    evaluation: Evaluation
    signals: tuple[Signal, ...]
    is_satisfied: bool

    @property
    def satisfiers(self) -> tuple[ReceivedSignal, ...]:
        counted = {one.signal_id for one in self.evaluation.satisfiers}
        return tuple(received(one) for one in self.signals if one.signal_id in counted)

    @property
    def documents(self) -> dict[str, bytes]:
        """The signals as they stand now that a condition has looked at them."""
        return {
            signal_name(one.waitpoint_id, one.signal_id): write_document(one)
            for one in self.signals
        }


def _judge(suspension: Suspension, pending: Waitpoint, buffered: Sequence[Signal]) -> _Judged:
    """Evaluate buffered signals in order of acceptance, until they satisfy the condition."""
    evaluation, judged = suspension.evaluation, []
    for signal in buffered:
        facts = facts_of(signal, pending.waitpoint_key)
        verdict = evaluate(suspension.resume_condition, evaluation, facts)
        evaluation = verdict.evaluation
        judged.append(_replace(signal, matched=verdict.matched, observed_effect=verdict.effect))
        if verdict.satisfied:
            return _Judged(evaluation, tuple(judged), True)
    return _Judged(evaluation, tuple(judged), False)
