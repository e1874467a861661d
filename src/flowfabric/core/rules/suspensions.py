"""Suspending: waitpoints handed out before a suspend, and giving up the lease to wait for the
outside, or finding that the wait is over already."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from flowfabric import errors
from flowfabric.core.condition_checks import check_keys
from flowfabric.core.conditions import Evaluation, completed, evaluate
from flowfabric.core.documents import SUSPENSION, signal_name, suspend_key_name, waitpoint_name
from flowfabric.core.events import SUSPENDED, released
from flowfabric.core.handles import Handle
from flowfabric.core.plan import Fence, Guard, PauseAttempt, Plan, Timer
from flowfabric.core.policy import read_policy
from flowfabric.core.record import Record
from flowfabric.core.rules.attempts import Children, new_round
from flowfabric.core.rules.mailbox import judge
from flowfabric.core.rules.operators import at_version
from flowfabric.core.states import FIRST
from flowfabric.core.suspend_outcomes import (
    Details,
    Outcome,
    Satisfied,
    StoredOutcome,
    Suspended,
    Tokens,
    details_of,
    given_up,
    kept,
    write_outcome,
)
from flowfabric.core.suspensions import (
    NEVER_COMMITTED,
    NOW,
    RESUMED,
    ReceivedSignal,
    Signal,
    Suspension,
    Waitpoint,
    facts_of,
    received,
    waitpoint_state,
    write_document,
)

_replace = msgspec.structs.replace


# Beyond this a sum is not exact in every store; the timer looks again then.
LONGEST_TIMER_MS: Final = 2**52


def holders_guard(record: Record, fence: Fence) -> Guard:
    """For a lease holder whose plan depends on documents: a signal may have come since the read."""
    return Guard(_ACTIVE, fence, version=record.version)


def check_unused(record: Record, stored: Waitpoint | None, now: int) -> None:
    """Whether a new waitpoint may have this id; a closed one makes room."""
    if stored is not None and waitpoint_state(record, stored, now) != "closed":
        raise errors.WaitpointAlreadyExists(f"{stored.waitpoint_id} is {stored.state}")


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
        raise errors.WaitpointNotFound(f"{record.execution_id} has no waitpoint {waitpoint_id}")
    lapsed = found.state == "closed" and found.close_reason == NEVER_COMMITTED
    if found.state != "pending" and not lapsed:
        raise errors.WaitpointNotPending(f"{waitpoint_id} is {found.state}")
    if found.attempt_index != record.attempt_index:
        raise errors.InvalidWaitpointForExecution(f"{waitpoint_id} belongs to another attempt")
    if lapsed or found.expires_at <= now:
        raise errors.PendingWaitpointExpired(f"{waitpoint_id} ended at {found.expires_at}")
    if found.token is None:
        raise errors.WaitpointNotTokenBound(f"{waitpoint_id} has no token")
    return found


def is_closed(record: Record, found: Waitpoint | None, waitpoint_id: str, now: int) -> bool:
    """Whether there is nothing left to close."""
    if found is None:
        raise errors.WaitpointNotFound(f"{record.execution_id} has no waitpoint {waitpoint_id}")
    if found.state not in ("pending", "active", "closed", "expired"):
        raise errors.WaitpointNotOpen(f"{waitpoint_id} is {found.state}")
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
    "waiting_for_first": FIRST,
}


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    """A suspend about to be made: by whom, what is stored of it, and where it is remembered."""

    execution_id: str
    fence: Fence
    op: str
    suspension: Suspension
    # The fresh waitpoints, the primary one first; none when the primary was pending.
    waitpoints: tuple[Waitpoint, ...]
    # What the outcome tells and no document keeps.
    tokens: Tokens = msgspec.field(default_factory=dict)
    handle: Handle
    idempotency_key: str = ""
    # The first of them to end ends the pause.
    children: Children | None = None


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


def suspend(pause: Pause, mail_count: int = 0) -> Decided:
    """Suspend on waitpoints that begin now. Nothing stored has to be known for it but, where mail
    counts, how much of it was looked at."""
    documents = {waitpoint_name(one.waitpoint_id): write_document(one) for one in pause.waitpoints}
    looked_at = mail_count if pause.suspension.mailbox else None
    guard = Guard(_ACTIVE, pause.fence, mail_count=looked_at)
    change = _Change(guard, {}, None, documents)
    return _suspended(pause, change, pause.waitpoints)


def suspend_with_mail(
    record: Record, pause: Pause, unread: Sequence[Signal]
) -> tuple[Plan | None, Outcome]:
    """Suspend, from what the mailbox holds already; mail that meets the condition stays there until
    its holder takes it, and nothing changes."""
    judged = judge(pause.suspension, unread)
    if judged.is_satisfied:
        own = pause.suspension.suspension_id
        return None, Satisfied(Details(own, ()), tuple(map(received, judged.counted)))
    suspension = _replace(pause.suspension, evaluation=judged.evaluation)
    return suspend(_replace(pause, suspension=suspension), record.mail_count)


class _Change(NamedTuple):
    """The parts of a plan that the ways to suspend fill differently; `timer` is the one of the
    pending waitpoints that are left."""

    guard: Guard
    set: Mapping[str, Any]
    timer: Timer | None
    documents: Mapping[str, bytes]


def _suspended(pause: Pause, change: _Change, waitpoints: tuple[Waitpoint, ...]) -> Decided:
    suspension = pause.suspension
    code = suspension.reason_code
    outcome = Suspended(details_of(suspension, waitpoints, pause.tokens), pause.handle)
    stored = StoredOutcome(
        variant="Suspended",
        suspension_id=suspension.suspension_id,
        waitpoints=tuple(map(kept, waitpoints)),
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
        graph=new_round(pause.execution_id, pause.children, "any_of") if pause.children else None,
        event=released(SUSPENDED),
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
    if judged.is_satisfied:
        details = details_of(suspension, (after,), pause.tokens)
        return Decided(_satisfied(pause, change, after), Satisfied(details, judged.satisfiers))
    return _suspended(pause, change, (after,))


def _after(suspension: Suspension, pending: Waitpoint, judged: "_Judged") -> Waitpoint:
    """The pending waitpoint once it is used: active, or closed because nothing has to wait."""
    matched = sum(one.matched for one in judged.signals)
    used = _replace(pending, matched_signal_count=matched, expires_at=0)
    if judged.is_satisfied:
        return _replace(closed(used, RESUMED), satisfied_at=NOW)
    return _replace(used, state="active", suspension_id=suspension.suspension_id, activated_at=NOW)


def _satisfied(pause: Pause, change: _Change, waitpoint: Waitpoint) -> Plan:
    """Nothing pauses: the holder keeps its lease and goes on."""
    suspension = pause.suspension
    stored = StoredOutcome(
        variant="AlreadySatisfied",
        suspension_id=suspension.suspension_id,
        waitpoints=(kept(waitpoint),),
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
        documents={**change.documents, **_remembered(pause.idempotency_key or pause.op, stored)},
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
