"""Documents of an execution: small named bodies stored with its record, and their names."""

from typing import ClassVar, Final

import msgspec

_HIDDEN: Final = "<REDACTED>"


class Redacted(msgspec.Struct, frozen=True):
    """Renders as other structs do, without the values of the fields that `hidden` names."""

    hidden: ClassVar[frozenset[str]] = frozenset()

    def __rich_repr__(self) -> list[tuple[str, object]]:
        fields = ((name, getattr(self, name)) for name in self.__struct_fields__)
        return [(name, _HIDDEN if name in self.hidden else value) for name, value in fields]

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({fields})"


class Document(Redacted, frozen=True):
    """A named document, with the store's instants of its first and last put."""

    # A body may hold a bearer credential.
    hidden = frozenset({"body"})

    body: bytes
    first_at: int
    last_at: int


SUSPENSION: Final = "susp"
WAITPOINT: Final = "wp/"
WAITPOINTS: Final = f"{WAITPOINT}*"
_MAIL: Final = "mail/"
# All unread mail, as a prefix to read by.
MAILBOX: Final = f"{_MAIL}*"


def waitpoint_name(waitpoint_id: str) -> str:
    return WAITPOINT + waitpoint_id


def signal_name(waitpoint_id: str, signal_id: str) -> str:
    return f"sig/{waitpoint_id}/{signal_id}"


def signals_of(waitpoint_id: str) -> str:
    """All signals a waitpoint was sent, as a prefix to read by."""
    return f"sig/{waitpoint_id}/*"


def signal_key_name(waitpoint_id: str, idempotency_key: str) -> str:
    return f"key/{waitpoint_id}/{_escaped(idempotency_key)}"


def mail_name(seq: int) -> str:
    """A signal in the mailbox, by its number among the signals of the execution."""
    return f"{_MAIL}{seq}"


def mail_key_name(signal_id: str) -> str:
    return f"mkey/{_escaped(signal_id)}"


def suspend_key_name(idempotency_key: str) -> str:
    return f"skey/{_escaped(idempotency_key)}"


def _escaped(text: str) -> str:
    """A caller's text as part of a name; an asterisk at its end would ask for a prefix."""
    return text.replace("%", "%25").replace("*", "%2A")
