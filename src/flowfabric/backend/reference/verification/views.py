"""Checks of the views: every record is shown where it belongs, and nothing is shown elsewhere."""

from collections import Counter
from collections.abc import Iterator

from flowfabric.backend.reference.tables import RECORDS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.verification.walking import entries_of, rows_of
from flowfabric.backend.types import Discrepancy
from flowfabric.core.record import Record
from flowfabric.core.views import BY_NAME, Entry, entries, tag_entries


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
    shown = set(entries_of(tx.tables, view))
    for _, record in rows_of(tx.tables, RECORDS):
        for place in _places(tx, record):
            if place.view == view and place not in shown:
                yield Discrepancy("view", f"{view} {place.key}", "nothing", str(place.order))


def _places(tx: Transaction, record: Record) -> list[Entry]:
    return [*entries(record), *tag_entries(record, tx.searchable)]
