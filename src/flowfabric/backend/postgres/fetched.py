"""Tables that answer from what was fetched before; whatever else is asked for is one more trip."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from flowfabric.backend.postgres.connection import Port
from flowfabric.backend.postgres.session import ROOTS, PostgresSession
from flowfabric.backend.reference.tables import (
    FLOWS,
    RECORDS,
    Changes,
    Order,
    QueueHead,
    Table,
)
from flowfabric.backend.sql.codecs import decode_flow, decode_record
from flowfabric.backend.sql.layout import Layout, Row
from flowfabric.core.graph import Edge, Flow
from flowfabric.core.record import Record
from flowfabric.core.views import Key

K = TypeVar("K")
V = TypeVar("V")

Take = Callable[[list[Row]], None]

LOCK_RECORDS: Final = (
    "SELECT seq, execution_id, body FROM exec"
    " WHERE execution_id = ANY (?) AND flow_id = '' ORDER BY execution_id FOR UPDATE"
)
MEMBERS: Final = (
    "SELECT seq, execution_id, body FROM exec WHERE execution_id = ANY (?) AND flow_id <> ''"
)


class FetchedTables(PostgresSession):
    """What was fetched is forgotten when the next transaction begins; queues, orders and counts
    also at a write, which may change them."""

    def __init__(self, connection: Port, searchable: frozenset[str]) -> None:
        super().__init__(connection, searchable)
        self._known: dict[Table[Any, Any], dict[Any, Any]] = {}
        # Records whose row this transaction has locked.
        self._locked: set[str] = set()
        self._forget()

    def begin(self, *, reading: bool = False) -> None:
        super().begin(reading=reading)
        self._known = {}
        self._locked = set()
        self._forget()

    def _forget(self) -> None:
        self._queues: dict[Key, tuple[list[Record], bool]] = {}
        # By lane and start, the queues that have work.
        self._named: dict[tuple[Key, str], list[QueueHead]] = {}
        self._lengths: dict[str, int] = {}
        self._revision: int | None = None
        # By source, its first edges; by order and bucket, the first rows. Each with whether that
        # is all.
        self._outgoing: dict[str, tuple[list[Edge], bool]] = {}
        self._heads: dict[tuple[str, Key], tuple[list[tuple[Any, Any]], bool]] = {}

    # ---- what was fetched

    def know(self, table: Table[K, V], keys: Iterable[K], found: dict[K, V]) -> None:
        """Answer these keys without a statement from now on; those not found are absent."""
        known = self._known.setdefault(table, {})
        for key in keys:
            known[key] = found.get(key)

    def take_records(self, rows: list[Row], *, locked: bool = False) -> list[Record]:
        """Records of rows of number, id and body."""
        known = self._known.setdefault(RECORDS, {})
        found: list[Record] = []
        for seq, execution_id, body in rows:
            self._seqs[execution_id] = seq
            record = known[execution_id] = decode_record(body)
            found.append(record)
            if locked:
                self._locked.add(execution_id)
        return found

    def take_flows(self, rows: list[Row]) -> dict[str, Flow]:
        found = {flow_id: decode_flow(body) for flow_id, body in rows}
        self._known.setdefault(FLOWS, {}).update(found)
        return found

    def know_lengths(self, lengths: dict[str, int]) -> None:
        self._lengths |= lengths

    def know_revision(self, rows: list[Row]) -> None:
        self._revision = int(rows[0][0])

    def know_outgoing(self, source: str, edges: list[Edge], *, is_all: bool) -> None:
        self._outgoing[source] = (edges, is_all)

    def know_head(
        self, order: Order[K, V], bucket: Key, rows: list[tuple[K, V]], *, is_all: bool
    ) -> None:
        self._heads[order.name, bucket] = (rows, is_all)

    def know_queue(self, key: Key, head: tuple[list[Record], bool]) -> None:
        self._queues[key] = head

    def know_queues(self, lane: Key, start: str, heads: list[QueueHead]) -> None:
        """As many as were asked for at first, or all there are."""
        self._named[lane, start] = heads

    def known(self, table: Table[K, V], key: K) -> V | None:
        found: V | None = self._known.get(table, {}).get(key)
        return found

    def is_absent(self, table: Table[Any, Any], key: Any) -> bool:
        return table in ROOTS and self._known.get(table, {}).get(key, key) is None

    # ---- rows

    def get(self, table: Table[K, V], key: K) -> V | None:
        known = self._known.get(table)
        if known is not None and key in known:
            found: V | None = known[key]
            return found
        return self.get_many(table, [key]).get(key)

    def get_many(self, table: Table[K, V], keys: Sequence[K]) -> dict[K, V]:
        known = self._known.get(table, {})
        missing = [key for key in keys if key not in known]
        found = {key: known[key] for key in keys if known.get(key) is not None}
        if missing:
            found |= self._fetch(table, missing)
        return found

    def _fetch(self, table: Table[K, V], keys: list[K]) -> dict[K, V]:
        if self.is_reading:
            if len(keys) == 1 and table is not RECORDS:
                value = super().get(table, keys[0])
                return {} if value is None else {keys[0]: value}
            return super().get_many(table, keys)
        if table is RECORDS:
            return self._fetch_records(keys)  # type: ignore[arg-type, return-value]
        statement, places = self.by_keys(table, keys)
        if not places:
            return {}
        found = self.unpacked(table, self.rows(statement, columns_of(places)), places)
        if table in ROOTS:
            self.know(table, keys, found)
        return found

    def _fetch_records(self, ids: list[str]) -> dict[str, Record]:
        """Records that are no members are locked; members are read under the lock of their flow."""
        ids = sorted(ids)
        free, members = self.send([(LOCK_RECORDS, (ids,)), (MEMBERS, (ids,))])
        records = self.take_records(free, locked=True) + self.take_records(members)
        return {record.execution_id: record for record in records}

    def by_keys(self, table: Table[K, V], keys: Iterable[K]) -> tuple[str, dict[Row, K]]:
        """The statement that selects rows by their keys, locking roots in order; the stored form
        of each key."""
        layout = self.layouts[table]
        places: dict[Row, K] = {}
        for key in keys:
            place = self.place(layout, key)
            if place is not None:
                places[place] = key
        return select_by_keys(layout, locks=table in ROOTS and not self.is_reading), places

    def unpacked(self, table: Table[K, V], rows: list[Row], places: dict[Row, K]) -> dict[K, V]:
        layout = self.layouts[table]
        width = len(layout.key)
        return {places[row[:width]]: layout.unpack(row[width:]) for row in rows}

    # ---- orders and counts

    def config_revision(self) -> int:
        return super().config_revision() if self._revision is None else self._revision

    def outgoing(self, source: str, after: str, limit: int) -> list[Edge]:
        edges, is_all = self._outgoing.get(source, ([], False))
        found = [edge for edge in edges if edge.edge_id > after]
        if is_all or len(found) >= limit:
            return found[:limit]
        return super().outgoing(source, after, limit)

    def journal_length(self, execution_id: str) -> int:
        length = self._lengths.get(execution_id)
        return super().journal_length(execution_id) if length is None else length

    def ordered(
        self, order: Order[K, V], bucket: Key, after: Key | None, upto: int | None, limit: int
    ) -> list[tuple[K, V]]:
        head = self._head(order, bucket, upto, limit) if after is None else None
        return super().ordered(order, bucket, after, upto, limit) if head is None else head

    def _head(
        self, order: Order[K, V], bucket: Key, upto: int | None, limit: int
    ) -> list[tuple[K, V]] | None:
        """The first rows of a bucket, if what was fetched is enough to tell."""
        rows, is_all = self._heads.get((order.name, bucket), ([], False))
        found = [row for row in rows if upto is None or instant_of(order, row) <= upto]
        is_enough = is_all or len(found) >= limit or len(found) < len(rows)
        return found[:limit] if is_enough else None

    def write(self, changes: Changes) -> None:
        self._forget()
        super().write(changes)


def instant_of(order: Order[Any, Any], row: tuple[Any, Any]) -> int:
    """What the rows of a bucket are sorted by first."""
    place = order.place(*row)
    return int(place[1][0]) if place is not None else 0


def columns_of(places: Iterable[Row]) -> list[list[Any]]:
    return [list(column) for column in zip(*places, strict=True)]


def select_by_keys(layout: Layout, *, locks: bool, waits: bool = True) -> str:
    """Rows by their keys, given as parallel arrays."""
    names = ", ".join(f"t.{name}" for name in (*layout.key, *layout.read))
    key = ", ".join(layout.key)
    arrays = ", ".join("?" * len(layout.key))
    on = " AND ".join(f"t.{name} = k.{name}" for name in layout.key)
    text = f"SELECT {names} FROM unnest({arrays}) AS k({key}) JOIN {layout.name} AS t ON {on}"
    if not locks:
        return text
    order = ", ".join(f"t.{name}" for name in layout.key)
    return f"{text} ORDER BY {order} FOR UPDATE OF t{'' if waits else ' SKIP LOCKED'}"
