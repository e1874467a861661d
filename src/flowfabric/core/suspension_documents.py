"""Reading and writing what waits for the outside, as documents of an execution.

A document cannot know the instant of the step that stores it. Where it means that instant it says
NOW, and lengths of time count from it; reading puts the store's own instant in their place. Every
later version of a document is decided from such a reading, so instants stay what they became.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from flowfabric.core.documents import SUSPENSION, Document, signal_name, waitpoint_name
from flowfabric.core.record import Record
from flowfabric.core.suspensions import NOW, Signal, SignalKey, Suspension, Waitpoint
from flowfabric.core.tokens import token_from_text, token_to_text
from flowfabric.errors import Corruption

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


write_document: Final[Callable[[object], bytes]] = msgspec.msgpack.Encoder(
    enc_hook=token_to_text
).encode


def _reader(kind: type[T], called: str) -> Callable[[Document], T]:
    decode = msgspec.msgpack.Decoder(kind, dec_hook=token_from_text).decode

    def read(document: Document) -> T:
        try:
            return _resolved(decode(document.body), document.last_at)
        except (msgspec.MsgspecError, UnicodeDecodeError, NotImplementedError) as fault:
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


def known_signal(document: Document | None, now: int) -> str:
    """The signal an idempotency key stands for, "" when it is not remembered (any more)."""
    if document is None:
        return ""
    entry = _read_signal_key(document)
    return entry.signal_id if document.last_at + entry.ttl_ms > now else ""
