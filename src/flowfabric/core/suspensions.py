"""What waits for the outside: suspensions, waitpoints and signals, stored as documents of an
execution.

A document cannot know the instant of the step that stores it. Where it means that instant it says
NOW, and lengths of time count from it; reading puts the store's own instant in their place. Every
later version of a document is decided from such a reading, so instants stay what they became.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, Protocol, TypeVar

import msgspec

from flowfabric.core.conditions import Condition, Evaluation, Satisfier, SignalFacts
from flowfabric.core.documents import (
    MAILBOX,
    SUSPENSION,
    Document,
    Redacted,
    mail_name,
    signal_name,
    waitpoint_name,
)
from flowfabric.core.record import Record
from flowfabric.core.states import FINAL
from flowfabric.core.tokens import Signed, TokenDigest
from flowfabric.errors import Corruption

# Stands in a document for the instant of the step that stores it.
NOW: Final = -1

How = Literal["signal", "operator", "timeout"]
WaitpointState = Literal["pending", "active", "closed"]

AUTO_RESUMED: Final = "timed_out_auto_resume"
NEVER_COMMITTED: Final = "never_committed"
RESUMED: Final = "resumed"
# The largest payload that is kept twice.
_CARRIED_BYTES: Final = 16 * 1024


class ResumePolicy(
    msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True
):
    """Kept for audit, except for the delay: waitpoints always close and signals always stay."""

    resume_target: Literal["runnable"] = "runnable"
    consume_matched_signals: bool = True
    retain_signal_buffer_until_closed: bool = False
    close_waitpoint_on_resume: bool = True
    resume_delay_ms: int | None = None


class ReceivedSignal(Redacted, frozen=True, kw_only=True, omit_defaults=True):
    """A signal as the attempt that it resumed reads it."""

    # What people send may be personal.
    hidden = frozenset({"payload"})

    signal_id: str
    signal_name: str
    signal_category: str
    source_type: str
    source_identity: str
    correlation_id: str
    accepted_at: int
    payload: bytes | None = None
    # Where it came to by token; "" for one in the mailbox, which has a number there instead.
    waitpoint_id: str = ""
    mail_seq: int = 0


class Bound(msgspec.Struct, frozen=True):
    """A further waitpoint of a suspension."""

    waitpoint_id: str
    waitpoint_key: str


class Suspension(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One pause of one execution, with its condition and how far that is met."""

    suspension_id: str
    attempt_index: int
    waitpoint_id: str
    waitpoint_key: str
    additional_waitpoints: tuple[Bound, ...] = ()
    reason_code: str
    requested_by: str = "worker"
    created_at: int = NOW
    timeout_at: int = 0
    timeout_in: int | None = None
    timeout_behavior: str = ""
    resume_condition: Condition
    resume_policy: ResumePolicy = ResumePolicy()
    # Whether signals in the mailbox count as well as those by token.
    mailbox: bool = False
    continuation_metadata_pointer: str = ""
    evaluation: Evaluation = Evaluation()
    last_signal_at: int = 0
    satisfied_at: int = 0
    closed_at: int = 0
    close_reason: str = ""
    trigger_type: str = ""
    closer_signal_id: str = ""
    # The signal that ended it, if that alone met the condition and is small.
    closer: ReceivedSignal | None = None


class Waitpoint(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An address signals are sent to. `state` is as stored; see `waitpoint_state` for what counts.

    An active one has no end of its own: it ends with its suspension.
    """

    waitpoint_id: str
    waitpoint_key: str
    attempt_index: int
    suspension_id: str = ""
    token: TokenDigest | None = None
    state: str
    # As signed in the token, which is the signer's reading of the store's clock.
    created_at: int = 0
    activated_at: int = 0
    satisfied_at: int = 0
    closed_at: int = 0
    expires_at: int = 0
    expires_in: int | None = None
    close_reason: str = ""
    signal_count: int = 0
    matched_signal_count: int = 0
    last_signal_at: int = 0
    # Signals up to this number were sent to a closed waitpoint that had the same id.
    after_seq: int = 0


class Signal(Redacted, frozen=True, omit_defaults=True, kw_only=True):
    """A named event from outside, as it was accepted. One in the mailbox has no waitpoint."""

    hidden = ReceivedSignal.hidden

    signal_id: str
    waitpoint_id: str
    target_scope: str = "waitpoint"
    signal_name: str
    signal_category: str
    source_type: str
    source_identity: str
    correlation_id: str = ""
    idempotency_key: str = ""
    created_at: int = NOW
    accepted_at: int = NOW
    seq: int = 0
    payload: bytes | None = None
    payload_encoding: str = "json"
    matched: bool = False
    observed_effect: str = ""


def received(signal: Signal) -> ReceivedSignal:
    return ReceivedSignal(
        signal_id=signal.signal_id,
        signal_name=signal.signal_name,
        signal_category=signal.signal_category,
        source_type=signal.source_type,
        source_identity=signal.source_identity,
        correlation_id=signal.correlation_id,
        accepted_at=signal.accepted_at,
        payload=signal.payload,
        waitpoint_id=signal.waitpoint_id,
        mail_seq=0 if signal.waitpoint_id else signal.seq,
    )


class SignalKey(msgspec.Struct, frozen=True):
    """An idempotency key of a waitpoint: which signal had it, and how long that is remembered."""

    signal_id: str
    ttl_ms: int


def is_open(record: Record, suspension_id: str) -> bool:
    return record.state == "suspended" and record.suspension_id == suspension_id


def waitpoint_state(record: Record, waitpoint: Waitpoint, now: int) -> WaitpointState:
    """The state that counts: the end of a suspension closes its waitpoints without a write."""
    if waitpoint.state == "pending":
        is_live = record.state not in FINAL and waitpoint.expires_at > now
        return "pending" if is_live else "closed"
    is_active = waitpoint.state == "active" and is_open(record, waitpoint.suspension_id)
    return "active" if is_active else "closed"


def how_ended(suspension: Suspension) -> How | None:
    """What resumed the execution; None when nothing has, or when it was ended instead."""
    if suspension.close_reason == AUTO_RESUMED:
        return "timeout"
    if suspension.close_reason == RESUMED:
        return "signal" if suspension.closer_signal_id else "operator"
    return None


def satisfiers_of(suspension: Suspension) -> tuple[Satisfier, ...]:
    """The signals that a resumed attempt reads; after a timeout that of the timeout."""
    if suspension.close_reason == AUTO_RESUMED:
        return (Satisfier(suspension.waitpoint_id, suspension.closer_signal_id),)
    return suspension.evaluation.satisfiers if suspension.close_reason == RESUMED else ()


def carried_signals(suspension: Suspension) -> tuple[ReceivedSignal, ...] | None:
    """The signals that `satisfiers_of` names; None when they are stored elsewhere."""
    if suspension.closer is not None:
        # Accepted by the step that ended the suspension.
        return (msgspec.structs.replace(suspension.closer, accepted_at=suspension.closed_at),)
    return None if satisfiers_of(suspension) else ()


def carried(suspension: Suspension, signal: Signal) -> ReceivedSignal | None:
    """The signal that ends the suspension, if nothing else is to be read for it."""
    alone = (_place_of(signal),)
    is_small = len(signal.payload or b"") <= _CARRIED_BYTES
    return received(signal) if is_small and suspension.evaluation.satisfiers == alone else None


def facts_of(signal: Signal, waitpoint_key: str) -> SignalFacts:
    return SignalFacts(
        signal_id=signal.signal_id,
        name=signal.signal_name,
        waitpoint_id=signal.waitpoint_id,
        waitpoint_key=waitpoint_key,
        source_type=signal.source_type,
        source_identity=signal.source_identity,
    )


# The key under which conditions with several waitpoints look at the mailbox.
MAILBOX_KEY: Final = "mailbox"


def facts_of_mail(mail: Signal, suspension: Suspension) -> SignalFacts:
    waitpoint_id, signal_id = _place_of(mail)
    is_tree = suspension.resume_condition.tree is not None
    return SignalFacts(
        signal_id=signal_id,
        name=mail.signal_name,
        waitpoint_id=waitpoint_id,
        waitpoint_key=MAILBOX_KEY if is_tree else suspension.waitpoint_key,
        source_type=mail.source_type,
        source_identity=mail.source_identity,
    )


def _place_of(signal: Signal) -> Satisfier:
    """Mail has no waitpoint: its number in the mailbox identifies it."""
    own = signal.signal_id if signal.waitpoint_id else str(signal.seq)
    return Satisfier(signal.waitpoint_id, own)


def stored_at(place: Satisfier) -> str:
    """The name of the document of a signal that counted."""
    if place.waitpoint_id:
        return signal_name(*place)
    return mail_name(int(place.signal_id))


class Tokened(Protocol):
    """Anything that has what the token of a waitpoint vouches for."""

    @property
    def waitpoint_id(self) -> str: ...
    @property
    def waitpoint_key(self) -> str: ...
    @property
    def created_at(self) -> int: ...


def signed_of(execution_id: str, waitpoint: Tokened) -> Signed:
    """What the waitpoint's token vouches for."""
    return Signed(
        execution_id, waitpoint.waitpoint_id, waitpoint.created_at, waitpoint.waitpoint_key
    )


MAX_INSTANT: Final = 2**63 - 1

T = TypeVar("T", bound=msgspec.Struct)

# Which fields may say NOW, and which lengths of time become which instants.
_INSTANTS: Final[Mapping[type, tuple[str, ...]]] = {
    Suspension: ("created_at", "last_signal_at", "satisfied_at", "closed_at"),
    Waitpoint: ("activated_at", "satisfied_at", "closed_at", "last_signal_at"),
    Signal: ("created_at", "accepted_at"),
    SignalKey: (),
}
_LENGTHS: Final[Mapping[type, tuple[str, str]]] = {
    Suspension: ("timeout_in", "timeout_at"),
    Waitpoint: ("expires_in", "expires_at"),
}


write_document: Final[Callable[[object], bytes]] = msgspec.msgpack.Encoder().encode


def _reader(kind: type[T], called: str) -> Callable[[Document], T]:
    decode = msgspec.msgpack.Decoder(kind).decode

    def read(document: Document) -> T:
        try:
            return _resolved(decode(document.body), document.last_at)
        except (msgspec.MsgspecError, UnicodeDecodeError) as fault:
            raise Corruption(f"{called}: document: {type(fault).__name__}") from None

    return read


def _resolved(one: T, at: int) -> T:
    """The document with the instant of its step in place of NOW."""
    news: dict[str, Any] = {name: at for name in _INSTANTS[type(one)] if getattr(one, name) == NOW}
    if type(one) in _LENGTHS:
        length, instant = _LENGTHS[type(one)]
        if getattr(one, length) is not None:
            news[instant] = min(at + getattr(one, length), MAX_INSTANT)
            news[length] = None
    return msgspec.structs.replace(one, **news) if news else one


read_suspension: Final = _reader(Suspension, "suspension")
read_waitpoint: Final = _reader(Waitpoint, "waitpoint")
read_signal: Final = _reader(Signal, "signal")
_read_signal_key: Final = _reader(SignalKey, "signal key")


def suspension_in(documents: Mapping[str, Document]) -> Suspension | None:
    document = documents.get(SUSPENSION)
    return read_suspension(document) if document else None


def open_suspension(record: Record, documents: Mapping[str, Document]) -> Suspension:
    """The suspension a suspended record is in."""
    suspension = suspension_in(documents)
    if suspension is None or suspension.suspension_id != record.suspension_id:
        raise Corruption(f"suspension: document: not the open one of {record.execution_id}")
    return suspension


def waitpoint_in(documents: Mapping[str, Document], waitpoint_id: str) -> Waitpoint | None:
    document = documents.get(waitpoint_name(waitpoint_id))
    return read_waitpoint(document) if document else None


def waitpoints_in(documents: Mapping[str, Document]) -> list[Waitpoint]:
    """All waitpoints among these documents, by id."""
    names = sorted(name for name in documents if name.startswith("wp/"))
    return [read_waitpoint(documents[name]) for name in names]


def signals_in(documents: Mapping[str, Document], waitpoint: Waitpoint) -> list[Signal]:
    """The signals sent to a waitpoint, in order of acceptance."""
    prefix = signal_name(waitpoint.waitpoint_id, "")
    sent = [read_signal(documents[name]) for name in documents if name.startswith(prefix)]
    return sorted(
        (signal for signal in sent if signal.seq > waitpoint.after_seq), key=lambda one: one.seq
    )


def mail_in(documents: Mapping[str, Document]) -> list[Signal]:
    """The unread signals of the mailbox, oldest first."""
    prefix = MAILBOX.removesuffix("*")
    found = [read_signal(documents[name]) for name in documents if name.startswith(prefix)]
    return sorted(found, key=lambda one: one.seq)


def known_signal(document: Document | None, now: int) -> str:
    """The signal an idempotency key stands for, "" when it is not remembered (any more)."""
    if document is None:
        return ""
    entry = _read_signal_key(document)
    return entry.signal_id if document.last_at + entry.ttl_ms > now else ""
