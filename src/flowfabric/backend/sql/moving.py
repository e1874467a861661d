"""A store in SQL as the source or target of a move."""

import json
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from flowfabric.backend.moving import MARKER, PARTITIONS, Marker, Page, marker_of, taken_over
from flowfabric.backend.reference import verification
from flowfabric.backend.reference.moving import LARGE, MOVED, Row, Tally, attached, movable
from flowfabric.backend.reference.tables import (
    CONFIG,
    KEPT,
    OWNED,
    RECORDS,
    Changes,
    Put,
)
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.sql.layout import LAYOUTS
from flowfabric.backend.sql.tables import SqlTables
from flowfabric.backend.sql.thread_queue import in_thread
from flowfabric.backend.types import ConfigDocument, Discrepancy
from flowfabric.core.views import Entry
from flowfabric.errors import Corruption

T = TypeVar("T")

_ROWS: Final = 500
# Of those that may be large.
_LARGE_ROWS: Final = 64
# What a forgotten process may write to: every table, and the log.
SEALED: Final = ("exec", "log", *(layout.name for layout in LAYOUTS.values()))


class _Cursor(NamedTuple):
    """Behind which key of which table. Of entries kept beside a record, how many of that record are
    passed: other stores know them by their place, not by a version."""

    table: int = 0
    after: Any = None
    passed: int = 0


class SqlMovable(ABC):
    """Every call is one transaction on one connection, in a thread."""

    family: str
    where: str

    def __init__(self, clock: Callable[[], int] | None) -> None:
        self._clock = clock or (lambda: time.time_ns() // 1_000_000)

    async def open(self) -> None:
        await in_thread(self._open)

    async def close(self) -> None:
        await in_thread(self._close)

    async def document(self, name: str) -> bytes | None:
        return await in_thread(lambda: self._read(lambda tables: _document(tables, name)))

    async def leases(self) -> int:
        return await in_thread(lambda: self._read(self._leases))

    async def size(self) -> int:
        return await in_thread(lambda: self._read(_size))

    async def page(self, cursor: str) -> Page:
        return await in_thread(lambda: self._read(lambda tables: self._page(tables, cursor)))

    async def tally(self) -> Tally:
        return Tally(self._clock())

    async def contents(self) -> list[str]:
        return await in_thread(lambda: self._read(_contents))

    async def seal(self, seen: Marker | None, marker: Marker) -> None:
        def do(tables: SqlTables) -> None:
            self._drop_seal(tables)
            self._expect(tables, seen)
            _put(tables, [], marker)
            self._put_seal(tables, marker)

        await in_thread(lambda: self._write(do))

    async def unseal(self, seen: Marker) -> None:
        def do(tables: SqlTables) -> None:
            self._drop_seal(tables)
            self._expect(tables, seen)
            tables.write(Changes({CONFIG: [Put(MARKER, None)]}, []))

        await in_thread(lambda: self._write(do))

    async def load(self, rows: Sequence[Row], seen: Marker | None, marker: Marker) -> None:
        def do(tables: SqlTables) -> None:
            self._expect(tables, seen)
            _put(tables, rows, marker)

        await in_thread(lambda: self._write(do))

    async def derive(self, page: Page) -> None:  # noqa: B027
        """Columns, views and orders were written with their rows."""

    async def verify(self) -> list[Discrepancy]:
        return await in_thread(lambda: self._read(self._verified))

    # ---- the connection

    @abstractmethod
    def _open(self) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...

    @abstractmethod
    def _read(self, read: Callable[[SqlTables], T]) -> T:
        """What is read in one transaction that changes nothing."""

    @abstractmethod
    def _write(self, write: Callable[[SqlTables], None]) -> None:
        """One transaction, committed."""

    @abstractmethod
    def _put_seal(self, tables: SqlTables, marker: Marker) -> None: ...

    @abstractmethod
    def _drop_seal(self, tables: SqlTables) -> None:
        """If there is one. No other transaction writes until this one ends."""

    @abstractmethod
    def _searchable(self) -> frozenset[str]: ...

    def _expect(self, tables: SqlTables, seen: Marker | None) -> None:
        if marker_of(_document(tables, MARKER)) != seen:
            raise taken_over(self.where)

    # ---- reads

    def _page(self, tables: SqlTables, cursor: str) -> Page:
        start = _Cursor(*json.loads(cursor)) if cursor else _Cursor()
        table = MOVED[start.table]
        limit = _LARGE_ROWS if table in LARGE else _ROWS
        found = [Row(table, *row) for row in tables.scan(table, _key(start.after), limit)]
        rows, passed = _placed(found, start) if table is KEPT else (found, 0)
        is_last = len(found) < limit
        behind = (
            _Cursor(start.table + 1) if is_last else _Cursor(start.table, found[-1].key, passed)
        )
        is_over = behind.table == len(MOVED)
        return Page(movable(rows, self._clock()), len(found), "" if is_over else json.dumps(behind))

    def _leases(self, tables: SqlTables) -> int:
        now = self._clock()
        return sum(
            record.lease_until > now
            for page in _pages_of_held(tables)
            for record in tables.get_many(RECORDS, page).values()
        )

    def _verified(self, tables: SqlTables) -> list[Discrepancy]:
        return verification.verify(Transaction(tables, self._clock(), self._searchable()))


def _key(after: Any) -> Any:
    return tuple(after) if isinstance(after, list) else after


def _placed(found: Iterable[Row], start: _Cursor) -> tuple[list[Row], int]:
    """Kept entries by their place among those of their record, and the last one's place."""
    owner, place = (start.after[0], start.passed) if start.after else ("", 0)
    rows: list[Row] = []
    for row in found:
        place = place + 1 if row.key[0] == owner else 0
        owner = row.key[0]
        rows.append(row._replace(key=(owner, place)))
    return rows, place


def _pages_of_held(tables: SqlTables) -> Iterator[list[str]]:
    """Executions that are active, by the view of workers."""
    last: Entry | None = None
    while entries := tables.view_entries("worker", last, _ROWS):
        yield [str(entry.order[-1]) for entry in entries]
        last = entries[-1]


def _document(tables: SqlTables, name: str) -> bytes | None:
    found = tables.get(CONFIG, name)
    return found.body if found is not None and found.body else None


def _size(tables: SqlTables) -> int:
    names = (layout.name for table, layout in LAYOUTS.items() if table in MOVED)
    return sum(int(tables.rows(f"SELECT count(*) FROM {name}")[0][0]) for name in ("exec", *names))


def _contents(tables: SqlTables) -> list[str]:
    return [
        table.name
        for table in MOVED
        if any(_foreign(tables, Row(table, *row)) for row in tables.scan(table, None, 3))
    ]


def _foreign(tables: SqlTables, row: Row) -> bool:
    """Whether a row belongs to a deployment: partition counts may have been agreed on before."""
    return row.table is not CONFIG or row.key not in (MARKER, PARTITIONS)


# ---- writes


def _put(tables: SqlTables, rows: Iterable[Row], marker: Marker) -> None:
    puts: defaultdict[Any, list[Put]] = defaultdict(list)
    for row in rows:
        puts[row.table].append(Put(row.key, row.value))
    records = {put.key: put.value for put in puts[RECORDS]}
    before = tables.get_many(RECORDS, [*records]) if records else {}
    puts[RECORDS] = [Put(key, value, before.get(key)) for key, value in records.items()]
    for table, key, value in (one for record in records.values() for one in attached(record)):
        puts[table].append(Put(key, value))
    puts[CONFIG].append(Put(MARKER, ConfigDocument(MARKER, 1, marker.body)))
    _find_owners(tables, {put.key[0] for table in OWNED for put in puts[table]} - records.keys())
    tables.write(Changes({table: own for table, own in puts.items() if own}, []))


def _find_owners(tables: SqlTables, owners: set[str]) -> None:
    if owners:
        tables.find(sorted(owners))
    for owner in owners:
        if tables.seq(owner) is None:
            raise Corruption(f"{owner}: rows of an execution that does not exist: run verify")
