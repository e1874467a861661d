"""Checks of single records: legal situations, fields that mean something where they are set, and
the attempts beside."""

from collections.abc import Iterator, Sequence
from typing import Final

from flowfabric.backend.reference.tables import ATTEMPTS, RECORDS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.verification.walking import rows_of
from flowfabric.backend.types import Discrepancy
from flowfabric.core.facets import is_legal
from flowfabric.core.record import (
    DUE,
    GRANT_FIELDS,
    LEASE_FIELDS,
    SUSPENSION_FIELDS,
    Attempt,
    Record,
    cleared,
    due_at_of,
    rank_of,
)
from flowfabric.core.states import CLAIMABLE, FINAL, HELD, RUNNABLE

_ATTEMPTS: Final = 1_000_000
_OPEN: Final = frozenset({"started", "suspended"})

_UNLEASED: Final = cleared(*LEASE_FIELDS)
_UNGRANTED: Final = cleared(*GRANT_FIELDS)
_UNSUSPENDED: Final = cleared(*SUSPENSION_FIELDS)


def check_records(tx: Transaction) -> Iterator[Discrepancy]:
    for execution_id, record in rows_of(tx.tables, RECORDS):
        rows = tx.tables.range(ATTEMPTS, (execution_id,), None, _ATTEMPTS)
        yield from check_record(record)
        yield from check_attempts(record, [attempt for _, attempt in rows])
        if record.execution_id != execution_id:
            yield Discrepancy("record", execution_id, record.execution_id, execution_id)


def check_record(record: Record) -> Iterator[Discrepancy]:
    """What the record says about itself."""
    own = record.execution_id
    if not is_legal(record):
        found = f"{record.state}/{record.reason or '-'}/{record.next or '-'}"
        yield Discrepancy("state", own, found, "a combination some rule writes")
    for name, expected in _derived(record).items():
        found = getattr(record, name)
        if found != expected:
            yield Discrepancy(name, own, str(found), str(expected))
    for name in _needed(record):
        if not getattr(record, name):
            yield Discrepancy(name, own, "unset", f"set in {record.state}")
    for name, unset in _meaningless(record).items():
        found = getattr(record, name)
        if found != unset:
            yield Discrepancy(name, own, str(found), f"unset in {record.state}")


def _derived(record: Record) -> dict[str, object]:
    return {
        "due_at": due_at_of(record),
        "rank": rank_of(record.priority, record.created_at, record.rank_shift),
    }


_ALWAYS: Final = ("created_at", "changed_at", "moved_at", "version")
_HELD: Final = ("lease_id", "lease_until", "lease_acquired_at", "lease_epoch", "worker_instance_id")
_NEEDED: Final[dict[str, tuple[str, ...]]] = {
    "active": (*_HELD, "attempt_id", "started_at"),
    "lost": (*_HELD, "attempt_id", "lost_at"),
    "delayed": ("wake_at",),
}


def _needed(record: Record) -> tuple[str, ...]:
    """Fields that must be set in the record's state."""
    own = ("completed_at", "purge_at") if record.state in FINAL else _NEEDED.get(record.state, ())
    granted = ("grant_id", "grant_until") if record.grant_id or record.grant_until else ()
    return (*_ALWAYS, *own, *granted)


def _meaningless(record: Record) -> dict[str, object]:
    """Fields that mean nothing in the record's state, each with its unset value."""
    state = record.state
    unset: dict[str, object] = {}
    if state not in HELD:
        unset.update(_UNLEASED)
    if state not in CLAIMABLE:
        unset.update(_UNGRANTED)
    if state != "suspended":
        unset.update(_UNSUSPENDED)
    if state not in FINAL:
        unset.update(completed_at=0, purge_at=0)
    if state not in DUE["wake_at"]:
        unset["wake_at"] = 0
    if state not in DUE["attempt_until"]:
        unset["attempt_until"] = 0
    if state not in DUE["pending_until"]:
        unset["pending_until"] = 0
    return unset


def check_attempts(record: Record, ended: Sequence[Attempt]) -> Iterator[Discrepancy]:
    """One attempt per index, at most one of them open, and that one in a live record."""
    own, attempt = record.execution_id, record.attempt
    if (attempt is not None) != _has_open_attempt(record):
        found = "an open attempt" if attempt else "no open attempt"
        yield Discrepancy("attempt", own, found, f"otherwise in {record.state}/{record.next}")
    indexes = [one.index for one in ended]
    if attempt is not None:
        indexes.append(attempt.index)
        if attempt.state not in _OPEN or attempt.ended_at:
            yield Discrepancy("attempt", own, attempt.state, "started or suspended")
        if attempt.attempt_id != record.attempt_id:
            yield Discrepancy("attempt_id", own, record.attempt_id, attempt.attempt_id)
    if indexes != list(range(record.attempt_count)):
        yield Discrepancy("attempts", own, str(indexes), f"0 to {record.attempt_count}")
    for one in ended:
        if one.state in _OPEN or not one.ended_at:
            yield Discrepancy("attempt", f"{own}/{one.index}", one.state, "ended")


def _has_open_attempt(record: Record) -> bool:
    if record.state in RUNNABLE:
        return record.next == "resume"
    return record.state not in FINAL
