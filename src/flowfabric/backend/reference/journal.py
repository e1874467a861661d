"""Mechanism `journal`: named steps of an execution, each written once, under the lease's fence."""

from collections.abc import Callable, Sequence
from typing import Final

from flowfabric.backend.reference.tables import DOCUMENTS, JOURNAL, RECORDS, JournalRow
from flowfabric.backend.reference.transaction import Transaction, is_held
from flowfabric.backend.types import JournalAppend, Journaled, JournalPage
from flowfabric.core.documents import mail_name
from flowfabric.core.journal import (
    MAX_ENTRIES,
    MAX_ENTRY_BYTES,
    JournalEntry,
    entry_too_large,
    journal_full,
    mail_gone,
    other_step,
)
from flowfabric.core.pages import Room
from flowfabric.core.plan import Refused
from flowfabric.core.record import Record
from flowfabric.core.transition import Transition, changed_record

# Entries may be large: so many are read before it is seen whether they fill the page.
_ROWS_A_READ: Final = 16

_Key = tuple[str, str, int]


def start_journal(
    tx: Transaction, items: Sequence[JournalAppend]
) -> Callable[[JournalAppend], Journaled | Refused]:
    # Entries are counted in the tables.
    tx.flush()
    tx.fetch(RECORDS, [item.execution_id for item in items])
    return _Journaling(tx).append


class _Journaling:
    """One batch. Whatever can go wrong with an item is found before its first write."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._lengths: dict[str, int] = {}

    def append(self, item: JournalAppend) -> Journaled | Refused:
        tx = self._tx
        record = tx.record(item.execution_id)
        if record is None or not is_held(record, item.fence, tx.now):
            return Refused(record, tx.now)
        new: dict[_Key, JournalEntry] = {}
        found = tuple(self._stored(item.execution_id, entry, new) for entry in item.entries)
        self._write(item.execution_id, new)
        if new and item.take:
            self._take(record, item.take)
        return Journaled(found, tx.now)

    def _stored(
        self, execution_id: str, entry: JournalEntry, new: dict[_Key, JournalEntry]
    ) -> JournalEntry | None:
        """The entry that is at this address already; if there is none, it joins the new ones."""
        key = (execution_id, entry.name, entry.seq)
        row = self._tx.get(JOURNAL, key)
        stored = row.entry if row else new.get(key)
        if stored is None:
            _check_size(entry)
            new[key] = entry
        elif stored.digest != entry.digest:
            raise other_step(entry, stored.digest)
        return stored

    def _take(self, record: Record, take: Sequence[int]) -> None:
        """Let signals leave the mailbox: whatever was made of them is recorded now."""
        own, tx, size = record.execution_id, self._tx, 0
        for seq in take:
            key = (own, mail_name(seq))
            document = tx.get(DOCUMENTS, key)
            if document is None:
                raise mail_gone(own, seq)
            size += len(document.body)
            tx.put(DOCUMENTS, key, None)
        news = {
            "mail_count": record.mail_count - len(take),
            "mail_bytes": record.mail_bytes - size,
        }
        tx.write(Transition(record, changed_record(record, news, tx.now)))

    def _write(self, execution_id: str, new: dict[_Key, JournalEntry]) -> None:
        if not new:
            return
        length = self._lengths.get(execution_id)
        if length is None:
            length = self._tx.tables.journal_length(execution_id)
        if length + len(new) > MAX_ENTRIES:
            raise journal_full(execution_id, length)
        for number, (key, entry) in enumerate(new.items(), start=length + 1):
            self._tx.insert(JOURNAL, key, JournalRow(number, entry))
        self._lengths[execution_id] = length + len(new)


def _check_size(entry: JournalEntry) -> None:
    if len(entry.outcome) > MAX_ENTRY_BYTES:
        raise entry_too_large(entry)


def read_journal(tx: Transaction, execution_id: str, after: int, limit: int) -> JournalPage:
    """Entries in the order they came, behind the number `after`."""
    if limit <= 0:
        return JournalPage(())
    found: list[tuple[int, JournalEntry]] = []
    room = Room()
    while True:
        rows = tx.tables.journal_rows(execution_id, after, _ROWS_A_READ)
        for row in rows:
            if len(found) == limit or not room.takes(len(row.entry.outcome)):
                return JournalPage(tuple(found), more=True)
            found.append((row.number, row.entry))
        if len(rows) < _ROWS_A_READ:
            return JournalPage(tuple(found))
        after = rows[-1].number
