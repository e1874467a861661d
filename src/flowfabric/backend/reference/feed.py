"""The log as readers see it: pages behind a cursor, and its trimming."""

from typing import Final, Literal

from flowfabric.backend.reference.flows import is_flow_among
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.types import EventFilter, EventPage, StoredEvent
from flowfabric.core.events import LogEntry
from flowfabric.core.ids import partition_of
from flowfabric.core.pages import Room, check_store, entry_bytes
from flowfabric.errors import InvalidInput

# A read that finds little for its filter looks at no more than this many entries.
MOST_LOOKS: Final = 10_000
_NUMBER_BYTES: Final = 8


def cursor_of(tag: int, number: int) -> bytes:
    """A position as readers keep it: the store's tag, then the number of the last entry seen."""
    return bytes((tag,)) + number.to_bytes(_NUMBER_BYTES, "big")


def number_of(tag: int, cursor: bytes) -> int:
    check_store(cursor, tag)
    if len(cursor) != 1 + _NUMBER_BYTES:
        raise InvalidInput(f"cursor: expected {1 + _NUMBER_BYTES} bytes, got {len(cursor)}")
    return int.from_bytes(cursor[1:], "big")


def cursor_at(tx: Transaction, tag: int, position: Literal["now", "oldest"]) -> bytes:
    oldest, newest = tx.tables.log_bounds()
    return cursor_of(tag, oldest if position == "oldest" else newest)


def events(tx: Transaction, tag: int, cursor: bytes, wanted: EventFilter, limit: int) -> EventPage:
    """Entries behind the cursor that the filter lets through; those it does not are passed."""
    asked = number_of(tag, cursor)
    oldest, newest = tx.tables.log_bounds()
    start = at = max(asked, oldest)
    if at > newest:
        # Another process could read further already. A cursor ahead of all numbers was made by a
        # log that is gone, as before a restored backup.
        start = at = min(at, tx.tables.last_log_number())
    found: list[StoredEvent] = []
    room = Room()
    is_full = False
    while not is_full and at - start < MOST_LOOKS:
        rows = tx.tables.log_rows(at, limit)
        if not rows:
            break
        for row in rows:
            is_wanted = _is_wanted(tx, row.entry, wanted)
            is_full = len(found) == limit or (is_wanted and not room.takes(entry_bytes(row.entry)))
            if is_full:
                break
            at = row.number
            if is_wanted:
                found.append(StoredEvent(cursor_of(tag, at), row.entry))
    return EventPage(tuple(found), cursor_of(tag, at), missed=start != asked)


def _is_wanted(tx: Transaction, entry: LogEntry, wanted: EventFilter) -> bool:
    if wanted.families and wanted.families.isdisjoint(entry.families):
        return False
    if wanted.namespace and entry.namespace != wanted.namespace:
        return False
    if wanted.tag is not None and entry.tags.get(wanted.tag[0]) != wanted.tag[1]:
        return False
    if not wanted.partitions:
        return True
    if entry.execution_id:
        return partition_of(entry.execution_id) in wanted.partitions
    return is_flow_among(tx, entry.flow_id, wanted.partitions)


def trim(tx: Transaction, keep_ms: int, keep: int) -> int:
    """Drop entries that are too old, or too many; how many went."""
    return tx.tables.trim_log(tx.now - keep_ms, keep)
