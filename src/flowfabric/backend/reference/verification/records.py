"""Checks of records: legal situations and fields, attempts, rows without an owner, and views that
show each record exactly where it belongs."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from flowfabric.backend.reference.tables import (
    ATTEMPTS,
    CONFIG,
    FLOWS,
    FRAMES,
    JOURNAL,
    OWNED,
    RECORDS,
    STREAMS,
    SUMMARIES,
    JournalRow,
    StreamMeta,
    Table,
    Tables,
)
from flowfabric.backend.reference.transaction import Transaction
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
from flowfabric.core.views import BY_NAME, Entry, entries, tag_entries
from flowfabric.operations.streams import Frame

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

_PAGE: Final = 1_000
_ATTEMPTS: Final = 1_000_000
_OPEN: Final = frozenset({"started", "suspended"})

_UNLEASED: Final = cleared(*LEASE_FIELDS)
_UNGRANTED: Final = cleared(*GRANT_FIELDS)
_UNSUSPENDED: Final = cleared(*SUSPENSION_FIELDS)


def pages(read: Callable[[T | None], list[T]]) -> Iterator[T]:
    """All things of which `read` gives a page behind the last one seen."""
    last: T | None = None
    while page := read(last):
        yield from page
        last = page[-1]


def rows_of(tables: Tables, table: Table[K, V]) -> Iterator[tuple[K, V]]:
    return pages(lambda last: tables.scan(table, last[0] if last else None, _PAGE))


def entries_of(tables: Tables, view: str) -> Iterator[Entry]:
    return pages(lambda last: tables.view_entries(view, last, _PAGE))


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


_FrameKey = tuple[str, int, int, int]


def check_rows(tx: Transaction) -> Iterator[Discrepancy]:
    yield from _check_owners(tx)
    for _, record in rows_of(tx.tables, RECORDS):
        if record.flow_id and tx.tables.get(FLOWS, record.flow_id) is None:
            yield Discrepancy("flow", record.execution_id, "missing", record.flow_id)
    for stream, meta in rows_of(tx.tables, STREAMS):
        yield from _check_stream(tx, stream, meta)
    yield from _check_journals(tx)
    revision = sum(document.version for _, document in rows_of(tx.tables, CONFIG))
    if tx.tables.config_revision() != revision:
        found = str(tx.tables.config_revision())
        yield Discrepancy("config_revision", "config", found, str(revision))


def _check_owners(tx: Transaction) -> Iterator[Discrepancy]:
    for table in OWNED:
        owner, is_owned = "", True
        for key, _ in rows_of(tx.tables, table):
            if key[0] != owner:
                owner = key[0]
                is_owned = tx.tables.get(RECORDS, owner) is not None
            if not is_owned:
                yield Discrepancy(table.name, str(key), "no owner", f"a record {owner}")


def _check_stream(
    tx: Transaction, stream: tuple[str, int], meta: StreamMeta
) -> Iterator[Discrepancy]:
    def page(last: tuple[_FrameKey, Frame] | None) -> list[tuple[_FrameKey, Frame]]:
        return tx.tables.range(FRAMES, stream, last[0] if last else None, _PAGE)

    seen: Counter[str] = Counter()
    for (_, _, ms, seq), frame in pages(page):
        seen[frame.mode] += 1
        if (ms, seq) > (meta.last_ms, meta.last_seq):
            yield Discrepancy("frame", f"{stream} {ms}-{seq}", "behind the last id", "before it")
    if seen != Counter(meta.retained):
        yield Discrepancy("retained", str(stream), str(meta.retained), str(dict(seen)))
    summary = tx.tables.get(SUMMARIES, stream)
    version = summary.version if summary else 0
    if meta.summary_version != version:
        yield Discrepancy("summary", str(stream), str(meta.summary_version), str(version))


def _check_journals(tx: Transaction) -> Iterator[Discrepancy]:
    lengths = Counter(key[0] for key, _ in rows_of(tx.tables, JOURNAL))
    for execution_id, length in lengths.items():

        def page(last: JournalRow | None, own: str = execution_id) -> list[JournalRow]:
            return tx.tables.journal_rows(own, last.number if last else 0, _PAGE)

        numbers = [row.number for row in pages(page)]
        if numbers != list(range(1, length + 1)):
            yield Discrepancy("journal", execution_id, str(numbers), f"1 to {length}")


def check_views(tx: Transaction) -> Iterator[Discrepancy]:
    """Every entry is looked up, and the entries are counted: only where the count is wrong too is
    a whole view held in memory."""
    expected = Counter(
        place.view for _, record in rows_of(tx.tables, RECORDS) for place in _places(tx, record)
    )
    for view in (*BY_NAME, "tag"):
        right = 0
        for entry in entries_of(tx.tables, view):
            record = tx.tables.get(RECORDS, str(entry.order[-1]))
            if record is not None and entry in _places(tx, record):
                right += 1
            else:
                yield Discrepancy("view", f"{view} {entry.key}", str(entry.order), "nothing")
        if right != expected[view]:
            yield from _missing(tx, view)


def _missing(tx: Transaction, view: str) -> Iterator[Discrepancy]:
    stored = set(entries_of(tx.tables, view))
    for _, record in rows_of(tx.tables, RECORDS):
        for place in _places(tx, record):
            if place.view == view and place not in stored:
                yield Discrepancy("view", f"{view} {place.key}", "nothing", str(place.order))


def _places(tx: Transaction, record: Record) -> list[Entry]:
    return [*entries(record), *tag_entries(record, tx.searchable)]
