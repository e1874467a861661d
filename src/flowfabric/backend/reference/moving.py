"""The rows that move from store to store: the truth of each table, in the one form that all stores
agree on. What follows from other rows is left to the target."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from flowfabric.backend.moving import MARKER
from flowfabric.backend.reference import limit_tables, tables
from flowfabric.backend.reference.tables import StreamMeta, Table
from flowfabric.core.record import Record
from flowfabric.operations.streams import Mode

# Owners come before what they own.
MOVED: Final[tuple[Table[Any, Any], ...]] = (
    tables.CONFIG,
    tables.FLOWS,
    tables.RECORDS,
    tables.BLOBS,
    tables.DOCUMENTS,
    tables.ATTEMPTS,
    tables.KEPT,
    tables.STREAMS,
    tables.SUMMARIES,
    tables.FRAMES,
    tables.NUMBERS,
    tables.JOURNAL,
    tables.EDGES,
    tables.GROUPS,
    tables.KEYS,
    tables.FAIRNESS,
    limit_tables.BUDGETS,
    limit_tables.LEDGERS,
    limit_tables.RESERVATIONS,
    limit_tables.MARKS,
    limit_tables.GATES,
    limit_tables.SLOTS,
    limit_tables.ENTRIES,
    limit_tables.WAITERS,
)
# Workers register again; what is attached to a budget follows from the records.
LEFT: Final[tuple[Table[Any, Any], ...]] = (tables.WORKERS, limit_tables.ATTACHED)
# Each row of these may be large.
LARGE: Final = frozenset({tables.BLOBS, tables.DOCUMENTS, tables.FRAMES, tables.JOURNAL})

_BEST_EFFORT: Final[Mode] = "best_effort"
# What ends within this time is moved, but not compared: one store may drop it before the other.
_NEAR_MS: Final = 3_600_000


class Row(NamedTuple):
    table: Table[Any, Any]
    key: Any
    value: Any


def attached(record: Record) -> Iterator[Row]:
    """That an execution stands at its budgets."""
    for budget_id in record.budget_ids:
        key = (budget_id, record.execution_id)
        yield Row(limit_tables.ATTACHED, key, record.created_at)


def movable(rows: Iterable[Row], now: int) -> list[Row]:
    """The rows that move, as all stores write them."""
    return [
        right for right in map(_canonical, rows) if right is not None and not _is_over(right, now)
    ]


def _canonical(row: Row) -> Row | None:
    form = _FORMS.get(row.table)
    return row if form is None else form(row)


def _document(row: Row) -> Row | None:
    return None if row.key == MARKER else row


def _stream(row: Row) -> Row:
    """Where a trim goes on is found again, and modes without frames are not listed."""
    meta: StreamMeta = row.value
    retained = {mode: number for mode, number in meta.retained.items() if number}
    return row._replace(value=msgspec.structs.replace(meta, trimmed={}, retained=retained))


def _gate(row: Row) -> Row | None:
    """One at which nothing was defined or is counted is none."""
    gate = row.value
    return row if gate.quota or gate.ends_at else None


_FORMS: Final[dict[Table[Any, Any], Callable[[Row], Row | None]]] = {
    tables.CONFIG: _document,
    tables.STREAMS: _stream,
    limit_tables.GATES: _gate,
}


def _is_over(row: Row, now: int) -> bool:
    return 0 < _end_of(row) <= now


def _end_of(row: Row) -> int:
    """When the row means nothing any more; 0 if that is not known from itself."""
    if row.table is tables.KEYS:
        return int(row.value.expires_at)
    return int(row.value) if row.table is limit_tables.MARKS else 0


class Tally:
    """Counts and digests by table. Digests are added up, so that the order does not matter."""

    def __init__(self, now: int) -> None:
        self._until = now + _NEAR_MS
        self._counts: Counter[str] = Counter()
        self._sums: Counter[str] = Counter()

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            compared = self._compared(row)
            if compared is not None:
                name = row.table.name
                digest = hashlib.sha256(_encode((name, *map(_plain, compared)))).digest()
                self._counts[name] += 1
                self._sums[name] = (self._sums[name] + int.from_bytes(digest, "big")) % 2**256

    def _compared(self, row: Row) -> tuple[Any, Any] | None:
        if _is_over(row, self._until):
            return None
        if row.table is tables.FRAMES and row.value.mode == _BEST_EFFORT:
            return None
        if row.table is tables.STREAMS:
            return row.key, msgspec.structs.replace(row.value, retained=_lasting(row.value))
        return row.key, row.value

    def differences(self, other: "Tally") -> list[str]:
        """One line for each table whose rows differ."""
        names = sorted(chain({*self._counts, *other._counts}))
        return [
            f"{name} ({self._counts[name]} and {other._counts[name]} rows)"
            for name in names
            if (self._counts[name], self._sums[name]) != (other._counts[name], other._sums[name])
        ]


def _lasting(meta: StreamMeta) -> dict[str, int]:
    return {mode: number for mode, number in meta.retained.items() if mode != _BEST_EFFORT}


def _plain(value: Any) -> Any:
    """Every field of a struct: one that has its default would be left out or not, depending on
    where the value comes from."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.astuple(value)
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode
