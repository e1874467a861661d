"""Capabilities: what an execution requires, what a worker offers, and which fit together."""

import re
from collections.abc import Iterable, Mapping, Sequence, Sized
from hashlib import sha256
from typing import Final, Literal

from flowfabric.core.ids import xor8hex
from flowfabric.errors import InvalidCapabilities, InvalidInput

Side = Literal["required", "worker"]

MAX_TOKENS: Final = 256
# As they are given, repeats included.
MAX_LISTED_TOKENS: Final = 1_024
MAX_CSV_BYTES: Final = 4096

NO_REQUIREMENTS: Final = "-"
"""The id of the requirement set every worker satisfies."""

# A lone surrogate is no character; it counts as unprintable.
_UNPRINTABLE: Final = re.compile(r"[\s\x00-\x20\x7f-\x9f\ud800-\udfff]").search


def required_from(value: object) -> tuple[str, ...]:
    """The sorted tokens an execution requires, from what its policy says."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple | set | frozenset):
        raise InvalidCapabilities("required:not_array")
    _check_listed(value, "required")
    for token in value:
        if fault := _fault(token):
            raise InvalidCapabilities(f"required:{fault}")
    required = tuple(sorted(set(value)))
    check_bounds(required, "required")
    return required


def worker_capabilities(tokens: Iterable[str]) -> tuple[str, ...]:
    """The sorted tokens a worker offers."""
    offered = _well_formed(_listed(tokens))
    check_bounds(offered, "worker")
    return offered


def offered_capabilities(tokens: Iterable[str]) -> tuple[str, ...]:
    """The same for a claim of one named execution: empty tokens are skipped, and their number is
    checked when the execution is known."""
    return _well_formed(token for token in _listed(tokens) if token != "")


def _listed(tokens: Iterable[str]) -> tuple[str, ...]:
    # A bare string is an iterable of letters, which is never what was meant.
    if isinstance(tokens, str) or not isinstance(tokens, Iterable):
        raise InvalidInput("capabilities: expected a list of strings")
    listed = tuple(tokens)
    _check_listed(listed, "worker")
    return listed


def _check_listed(tokens: Sized, side: Side) -> None:
    """Bounds the list before its tokens are read: a token may be repeated."""
    if len(tokens) > MAX_LISTED_TOKENS:
        raise InvalidCapabilities(f"{side}:too_many_tokens")


def _well_formed(tokens: Iterable[str]) -> tuple[str, ...]:
    distinct = set()
    for token in tokens:
        if fault := _fault(token):
            raise InvalidInput(f"capabilities: {token!r}: {fault}")
        distinct.add(token)
    return tuple(sorted(distinct))


def _fault(token: object) -> str | None:
    if not isinstance(token, str):
        return "non_string_token"
    if not token:
        return "empty_token"
    if "," in token:
        return "comma_in_token"
    return "control_or_whitespace" if _UNPRINTABLE(token) else None


def check_bounds(tokens: Sequence[str], side: Side) -> None:
    """Refuse a set that is too large, first by count, then by bytes."""
    if len(tokens) > MAX_TOKENS:
        raise InvalidCapabilities(f"{side}:too_many_tokens")
    if len(",".join(tokens).encode()) > MAX_CSV_BYTES:
        raise InvalidCapabilities(f"{side}:too_many_bytes")


def missing(required: Iterable[str], offered: Iterable[str]) -> tuple[str, ...]:
    """The required tokens that are not offered, sorted; empty when the worker may run it."""
    return tuple(sorted(set(required).difference(offered)))


def csv(tokens: Iterable[str]) -> str:
    """A set of tokens as one text; the same set always gives the same text."""
    return ",".join(sorted(set(tokens)))


def set_id(tokens: Iterable[str]) -> str:
    """The id under which a requirement set is registered and queued."""
    text = csv(tokens)
    return sha256(text.encode()).hexdigest()[:16] if text else NO_REQUIREMENTS


def satisfied(sets: Mapping[str, Sequence[str]], capabilities: Iterable[str]) -> tuple[str, ...]:
    """The ids of the requirement sets a worker may ask for, the empty one always among them."""
    offered = frozenset(capabilities)
    ids = {name for name, tokens in sets.items() if offered.issuperset(tokens)}
    return tuple(sorted(ids | {NO_REQUIREMENTS}))


def digest(tokens: Iterable[str]) -> str:
    """A short digest of a capability list, for logs."""
    return xor8hex(csv(tokens))
