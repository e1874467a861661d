"""Documents of an execution: small named bodies beside its record, and what they are called."""

from typing import Final

from flowfabric.core.redaction import Redacted


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


def waitpoint_name(waitpoint_id: str) -> str:
    return WAITPOINT + waitpoint_id


def signal_name(waitpoint_id: str, signal_id: str) -> str:
    return f"sig/{waitpoint_id}/{signal_id}"


def signals_of(waitpoint_id: str) -> str:
    """All signals a waitpoint was sent, as a prefix to read by."""
    return f"sig/{waitpoint_id}/*"


def signal_key_name(waitpoint_id: str, idempotency_key: str) -> str:
    return f"key/{waitpoint_id}/{_escaped(idempotency_key)}"


def suspend_key_name(idempotency_key: str) -> str:
    return f"skey/{_escaped(idempotency_key)}"


def _escaped(text: str) -> str:
    """A caller's text as part of a name; an asterisk at its end would ask for a prefix."""
    return text.replace("%", "%25").replace("*", "%2A")
