"""The reference's tables over rows that were read from Valkey; what is written is kept for a
commit."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from flowfabric.backend.reference.tables import Changes, Order, Table
from flowfabric.backend.valkey.calls import Read
from flowfabric.backend.valkey.packing import Args
from flowfabric.backend.valkey.snapshots import Snapshot
from flowfabric.core.events import LogEntry
from flowfabric.core.views import Key
from flowfabric.errors import Bug

K = TypeVar("K")
V = TypeVar("V")


class Stored(NamedTuple):
    """How the rows of one table are stored: what is read of a row, the row that the replies make,
    and how a commit puts it (`value` None deletes), None if it is kept elsewhere."""

    reads: Callable[[Any], Sequence[Read]]
    value: Callable[[Any, list[Any]], Any]
    put: Callable[["Writing", Args], list[Any] | None]


class Writing(NamedTuple):
    """A row to write, and what it was before."""

    key: Any
    value: Any
    before: Any


class SortedSet(NamedTuple):
    """Where an order's sorted set lies, and the key of the row that one of its members stands
    for."""

    name: Callable[[Key], str]
    row: Callable[[Key, str], Any]


_NO_ORDERS: Final[Mapping[Order[Any, Any], SortedSet]] = {}


class StoredTables:
    """Only what rare mechanisms ask of tables. `names` has the sorted set of a table whose rows are
    listed by name, by the prefix they share."""

    def __init__(
        self,
        snapshot: Snapshot,
        tables: Mapping[Table[Any, Any], Stored],
        orders: Mapping[Order[Any, Any], SortedSet] = _NO_ORDERS,
        names: Callable[[tuple[Any, ...]], str] = str,
    ) -> None:
        self._snapshot = snapshot
        self._tables = tables
        self._orders = orders
        self._names = names
        self._written: list[tuple[Stored, Writing]] = []
        self.log: list[LogEntry] = []

    def get(self, table: Table[K, V], key: K) -> V | None:
        stored = self._tables[table]
        return stored.value(key, self._replies(stored.reads(key)))  # type: ignore[no-any-return]

    def get_many(self, table: Table[K, V], keys: Sequence[K]) -> dict[K, V]:
        # All are asked for before any is made, so that they are read in one call.
        reads = self._tables[table].reads
        self._replies([read for key in keys for read in reads(key)])
        found = ((key, self.get(table, key)) for key in keys)
        return {key: value for key, value in found if value is not None}

    def ordered(
        self, order: Order[K, V], bucket: Key, after: Key | None, upto: int | None, limit: int
    ) -> list[tuple[K, V]]:
        size = limit
        while True:
            keys = self._members(order, bucket, upto, size)
            found = self.get_many(order.table, keys)
            rows = [(key, found[key]) for key in keys if _is_behind(order, key, found[key], after)]
            if len(rows) >= limit or len(keys) < size:
                return rows[:limit]
            size *= 2

    def _members(
        self, order: Order[Any, Any], bucket: Key, upto: int | None, limit: int
    ) -> list[Any]:
        own = self._orders[order]
        to = "+inf" if upto is None else str(upto)
        words = ("ZRANGE", own.name(bucket), "-inf", to, "BYSCORE", "LIMIT", "0", str(limit))
        (members,) = self._replies([words])
        return [own.row(bucket, member.decode()) for member in members]

    def range(
        self, table: Table[K, V], prefix: tuple[Any, ...], after: Any, limit: int
    ) -> list[tuple[K, V]]:
        keys: list[Any] = [
            (*prefix, name) for name in self._behind(prefix, after and after[-1], limit)
        ]
        return list(self.get_many(table, keys).items())

    def scan(self, table: Table[str, V], after: str | None, limit: int) -> list[tuple[str, V]]:
        return list(self.get_many(table, self._behind((), after, limit)).items())

    def _behind(self, prefix: tuple[Any, ...], after: str | None, limit: int) -> list[str]:
        """Names in their order, strictly behind one."""
        since = f"({after}" if after else "-"
        words = ("ZRANGE", self._names(prefix), since, "+", "BYLEX", "LIMIT", "0", str(limit))
        (names,) = self._replies([words])
        return [name.decode() for name in names]

    def _replies(self, reads: Sequence[Read]) -> list[Any]:
        if self._written:
            raise Bug("rows are read behind a write, which they would not show")
        return self._snapshot.replies(reads)

    def write(self, changes: Changes) -> None:
        for table, puts in changes.puts.items():
            stored = self._tables[table]
            self._written += [(stored, Writing(*put)) for put in puts if put.value != put.before]
        self.log += changes.log

    def puts(self, args: Args) -> list[list[Any]]:
        puts = (stored.put(writing, args) for stored, writing in self._written)
        return [put for put in puts if put is not None]


def _is_behind(order: Order[K, V], key: K, value: V, after: Key | None) -> bool:
    place = order.place(key, value)
    return place is not None and (after is None or place[1] > after)
