"""Steps that an execution has recorded."""

from typing import Final

import msgspec

from flowfabric.errors import Conflict, Nondeterminism, PayloadTooLarge, ResourceExhausted

MAX_ENTRIES: Final = 10_000
MAX_ENTRY_BYTES: Final = 1024 * 1024


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
