"""Steps that an execution has recorded."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final

import msgspec

from flowfabric.errors import (
    Conflict,
    InvalidInput,
    Nondeterminism,
    PayloadTooLarge,
    ResourceExhausted,
)

MAX_ENTRIES: Final = 10_000
MAX_ENTRY_BYTES: Final = 1024 * 1024


# How names begin that are not those of a program's steps.
RESERVED: Final = "ff."
# The failure of a call is recorded beside its value, and a child under its kind.
FAILED: Final = "ff.failed "
CHILD: Final = "ff.child "


class JournalEntry(msgspec.Struct, frozen=True):
    """One named step; `seq` counts the uses of the name."""

    name: str
    seq: int
    digest: str
    outcome: bytes


def other_step(entry: JournalEntry, recorded: str) -> Nondeterminism:
    """The step was recorded before with another digest."""
    return Nondeterminism(
        f"step {entry.name!r}, use {entry.seq}: recorded {recorded}, now {entry.digest}",
        recorded=recorded,
        given=entry.digest,
    )


def entry_too_large(entry: JournalEntry) -> PayloadTooLarge:
    size = len(entry.outcome)
    return PayloadTooLarge(f"journal entry of {size} bytes, at most {MAX_ENTRY_BYTES}")


def journal_full(execution_id: str, length: int) -> ResourceExhausted:
    text = f"journal: {execution_id} has {length} of {MAX_ENTRIES}"
    return ResourceExhausted(text, resource="journal")


def mail_gone(execution_id: str, seq: int) -> Conflict:
    return Conflict(f"take: signal {seq} is not in the mailbox of {execution_id}")


# ---- what a replay keeps

Numbered = Sequence[tuple[int, JournalEntry]]
Step = tuple[str, int]


def failed_step(text: str) -> Step:
    """A step as a record names it: `name#use`."""
    name, _, use = text.rpartition("#")
    return name, int(use)


def place_of_failure(rows: Numbered, step: Step) -> int:
    """Where the failure of a call was recorded; 0 when it is not there."""
    name, use = step
    wanted = (FAILED + name, use)
    return next((number for number, one in rows if (one.name, one.seq) == wanted), 0)


def place_of_step(rows: Numbered, text: str) -> int:
    """Where the first use of a step was recorded, its value or its failure; as `name#3` the third
    use."""
    places: dict[Step, int] = {}
    for number, one in rows:
        places.setdefault((one.name.removeprefix(FAILED), one.seq), number)
    name, mark, use = text.rpartition("#")
    wanted = [(text, 1)]
    if mark and use.isdecimal():
        wanted.append((name, int(use)))
    found = next((places[one] for one in wanted if one in places), 0)
    if not found:
        raise InvalidInput(f"steps_until: no step {text!r} is recorded{_near(text, places)}")
    return found


def _near(text: str, places: Mapping[Step, int]) -> str:
    known = {name if use == 1 else f"{name}#{use}" for name, use in places}
    near = get_close_matches(text, sorted(known), 3)
    if not near:
        near = sorted(one for one in known if not one.startswith(RESERVED))[:3]
    return f"; there is {', '.join(map(repr, near))}" if near else ""


class _Outcome(msgspec.Struct):
    value: msgspec.Raw = msgspec.Raw(b"null")


def child_of(entry: JournalEntry) -> str:
    """The child that a submit recorded; "" for any other entry."""
    if not entry.name.startswith(CHILD):
        return ""
    try:
        outcome = msgspec.json.decode(entry.outcome, type=_Outcome)
        return msgspec.json.decode(outcome.value, type=str)
    except msgspec.DecodeError:
        # Written by a worker of another make.
        return ""
