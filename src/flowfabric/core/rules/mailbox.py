"""The mailbox: signals sent to an execution by its id, which are kept until a wait takes them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import msgspec

from flowfabric.core.checks import not_active
from flowfabric.core.conditions import Evaluation, evaluate
from flowfabric.core.documents import SUSPENSION, Document, mail_key_name, mail_name
from flowfabric.core.journal import RESERVED, JournalEntry
from flowfabric.core.plan import Guard, Plan, Timer
from flowfabric.core.record import Record
from flowfabric.core.rules.signals import (
    Accepted,
    DeliveryDecision,
    check_limit,
    resume_change,
    resume_delay,
    resumed,
    signal_event_of,
)
from flowfabric.core.states import FINAL
from flowfabric.core.suspensions import (
    NOW,
    ReceivedSignal,
    Signal,
    SignalKey,
    Suspension,
    facts_of_mail,
    open_suspension,
    write_document,
)
from flowfabric.errors import ResourceExhausted

_replace = msgspec.structs.replace

MOST_UNREAD: Final = 1_000
MOST_UNREAD_BYTES: Final = 1024 * 1024
# How long the id of a signal is remembered.
REMEMBERED_MS: Final = 86_400_000
KEPT: Final = "kept_in_mailbox"


def post(record: Record, documents: Mapping[str, Document], signal: Signal) -> DeliveryDecision:
    """Put a signal that is new into the mailbox, and resume the execution if it waited for it."""
    if record.state in FINAL:
        raise not_active(record)
    check_limit(record)
    mail = _replace(signal, seq=record.signal_count + 1, observed_effect=KEPT)
    change = _Change({}, None, {})
    guard = Guard(frozenset({record.state}), version=record.version)
    # A parked execution has no suspension that mail could end.
    if record.state == "suspended" and record.suspension_id:
        guard = _replace(guard, suspension_id=record.suspension_id)
        suspension = open_suspension(record, documents)
        if suspension.mailbox:
            mail, change = _evaluated(suspension, mail)
    body = write_document(mail)
    _check_room(record, len(body))
    plan = Plan(
        target=record.execution_id,
        rule="signal",
        guard=guard,
        set={
            "signal_count": mail.seq,
            "mail_count": record.mail_count + 1,
            "mail_bytes": record.mail_bytes + len(body),
            **change.set,
        },
        timer=change.timer,
        documents={mail_name(mail.seq): body, **change.documents, **_remembered(mail)},
        event=signal_event_of(mail, mail.observed_effect),
    )
    return DeliveryDecision(plan, Accepted(mail.signal_id, mail.observed_effect))


def taken_in(entries: Iterable[JournalEntry]) -> tuple[ReceivedSignal, ...]:
    """The signals that left the mailbox with these entries, which are those of waits."""
    found: dict[int, ReceivedSignal] = {}
    for entry in entries:
        # What cannot be read was written by a worker of another make, and took nothing.
        with suppress(msgspec.DecodeError):
            if entry.name.startswith(RESERVED):
                for one in _mail_within(msgspec.json.decode(entry.outcome)):
                    found.setdefault(one.mail_seq, one)
    return tuple(found.values())


def _mail_within(value: object) -> Iterator[ReceivedSignal]:
    if isinstance(value, dict) and "signal_id" in value and value.get("mail_seq"):
        yield msgspec.convert(value, ReceivedSignal)
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _mail_within(part)


class MailChange(NamedTuple):
    """The counts of the mailbox, and the documents that are put or dropped."""

    set: Mapping[str, int]
    documents: Mapping[str, bytes | None]


def put_back(record: Record, taken: Sequence[ReceivedSignal]) -> MailChange:
    """Put signals back into the mailbox, each in its place."""
    documents = {mail_name(one.mail_seq): write_document(_unread(one)) for one in taken}
    size = sum(map(len, documents.values()))
    counts = {
        "mail_count": record.mail_count + len(documents),
        "mail_bytes": record.mail_bytes + size,
    }
    return MailChange(counts, documents)


def _unread(taken: ReceivedSignal) -> Signal:
    return Signal(
        signal_id=taken.signal_id,
        waitpoint_id="",
        target_scope="execution",
        signal_name=taken.signal_name,
        signal_category=taken.signal_category,
        source_type=taken.source_type,
        source_identity=taken.source_identity,
        correlation_id=taken.correlation_id,
        accepted_at=taken.accepted_at,
        seq=taken.mail_seq,
        payload=taken.payload,
        observed_effect=KEPT,
    )


class _Change(NamedTuple):
    """What else changes when a signal is put into the mailbox."""

    set: Mapping[str, Any]
    timer: Timer | None
    documents: Mapping[str, bytes]


def _evaluated(suspension: Suspension, mail: Signal) -> tuple[Signal, _Change]:
    """Evaluate the open condition with one more signal."""
    facts = facts_of_mail(mail, suspension)
    verdict = evaluate(suspension.resume_condition, suspension.evaluation, facts)
    if not verdict.matched:
        return mail, _Change({}, None, {})
    after = _replace(suspension, evaluation=verdict.evaluation, last_signal_at=NOW)
    goal: dict[str, Any] = {}
    timer: Timer | None = None
    if verdict.satisfied:
        after = resumed(after, mail)
        delay = resume_delay(suspension, None)
        goal, timer = resume_change(delay, f" after signal {mail.signal_name}")
    judged = _replace(mail, matched=True, observed_effect=verdict.effect)
    return judged, _Change(goal, timer, {SUSPENSION: write_document(after)})


def _check_room(record: Record, size: int) -> None:
    unread, used = record.mail_count + 1, record.mail_bytes + size
    if unread > MOST_UNREAD or used > MOST_UNREAD_BYTES:
        raise ResourceExhausted(
            f"mailbox of {record.execution_id}: {record.mail_count} unread signals,"
            f" {record.mail_bytes} bytes; at most {MOST_UNREAD} and {MOST_UNREAD_BYTES}",
            resource="mailbox",
        )


def _remembered(mail: Signal) -> dict[str, bytes]:
    if not mail.idempotency_key:
        return {}
    entry = SignalKey(mail.signal_id, REMEMBERED_MS)
    return {mail_key_name(mail.idempotency_key): write_document(entry)}


class JudgedMail(NamedTuple):
    """How far unread mail meets a condition, and the signals that count for it."""

    evaluation: Evaluation
    counted: tuple[Signal, ...]
    is_satisfied: bool


def judge(suspension: Suspension, unread: Sequence[Signal]) -> JudgedMail:
    """Evaluate mail, oldest first, until it meets the condition; one signal fills one matcher."""
    evaluation, counted = suspension.evaluation, []
    for mail in unread:
        facts = facts_of_mail(mail, suspension)
        verdict = evaluate(suspension.resume_condition, evaluation, facts)
        if verdict.matched:
            evaluation = verdict.evaluation
            counted.append(mail)
        if verdict.satisfied:
            return JudgedMail(evaluation, tuple(counted), True)
    return JudgedMail(evaluation, tuple(counted), False)
