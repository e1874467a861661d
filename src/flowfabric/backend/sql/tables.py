"""The tables of the reference, kept in SQL."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Final, TypeVar, cast

from flowfabric.backend.reference.tables import (
    EDGES,
    RECORDS,
    Changes,
    JournalRow,
    LogRow,
    Order,
    QueueHead,
    Table,
)
from flowfabric.backend.sql import views
from flowfabric.backend.sql.changes import write_changes
from flowfabric.backend.sql.codecs import decode_edge, decode_entry, decode_flow, decode_journal
from flowfabric.backend.sql.layout import Layout, Row
from flowfabric.backend.sql.session import Session
from flowfabric.backend.sql.tags import tagged
from flowfabric.core.graph import Edge, Flow
from flowfabric.core.ids import partition_of
from flowfabric.core.record import Record
from flowfabric.core.views import BY_NAME, Entry, Key

K = TypeVar("K")
V = TypeVar("V")

# A longer trim would delay the writers; the next one continues.
MOST_TRIMMED: Final = 10_000

_RECORD: Final = "SELECT seq, execution_id, body FROM exec WHERE execution_id = ?"
_RECORDS: Final = (
    "SELECT seq, execution_id, body FROM exec"
    " WHERE execution_id IN (SELECT value FROM json_each(?))"
)
_WALK: Final = (
    "SELECT seq, execution_id, body FROM exec INDEXED BY exec_id"
    " WHERE execution_id > ? ORDER BY execution_id LIMIT ?"
)
_OUTGOING: Final = (
    "SELECT body FROM edge INDEXED BY edge_source"
    " WHERE source = ? AND edge_id > ? ORDER BY edge_id LIMIT ?"
)
_INCOMING: Final = (
    "SELECT body FROM edge INDEXED BY edge_target"
    " WHERE target = ? AND edge_id > ? ORDER BY edge_id LIMIT ?"
)
_FLOW_EDGES: Final = (
    "SELECT body FROM edge WHERE flow_id = ? AND edge_id > ? ORDER BY edge_id LIMIT ?"
)
_DUE_FLOWS: Final = (
    "SELECT body FROM flow INDEXED BY flow_due"
    " WHERE due_at <> 0 AND (due_at, flow_id) > (?, ?) AND due_at <= ?"
    " ORDER BY due_at, flow_id LIMIT ?"
)
_FLOWS_IN: Final = (
    "SELECT body FROM flow INDEXED BY flow_part"
    " WHERE part = ? AND flow_id > ? ORDER BY flow_id LIMIT ?"
)
_FLOWS_OLDEST_FIRST: Final = (
    "SELECT body FROM flow INDEXED BY flow_ages"
    " WHERE (created_at, flow_id) > (?, ?) ORDER BY created_at, flow_id LIMIT ?"
)
_FLOWS_NEWEST_FIRST: Final = (
    "SELECT body FROM flow INDEXED BY flow_ages"
    " WHERE (created_at, flow_id) < (?, ?) ORDER BY created_at DESC, flow_id DESC LIMIT ?"
)
_PURGEABLE_FLOWS: Final = (
    "SELECT body FROM flow INDEXED BY flow_purge"
    " WHERE purge_at <> 0 AND purge_at <= ? ORDER BY purge_at, flow_id LIMIT ?"
)
_NEVER: Final = 2**62
_JOURNAL: Final = (
    "SELECT body FROM journal INDEXED BY journal_number"
    " WHERE owner = ? AND number > ? ORDER BY number LIMIT ?"
)
_JOURNAL_END: Final = (
    "SELECT coalesce(max(number), 0) FROM journal INDEXED BY journal_number WHERE owner = ?"
)
_LOG_ROWS: Final = "SELECT number, body FROM log WHERE number > ? ORDER BY number LIMIT ?"
# Asked for one by one, each end is a step down the tree; together they would be a scan.
_LOG_BOUNDS: Final = "SELECT (SELECT min(number) FROM log) - 1, (SELECT max(number) FROM log)"
# Entries lie in the order of their instants, so the walk ends at the first one that is kept.
_LOG_FRESH: Final = "SELECT number FROM log WHERE number <= ? AND at >= ? ORDER BY number LIMIT 1"
_LOG_TRIM: Final = "DELETE FROM log WHERE number <= ?"
_EXPIRED_KEYS: Final = (
    "DELETE FROM idempotency WHERE (scope, key) IN (SELECT scope, key FROM idempotency"
    " INDEXED BY idempotency_expiry WHERE expires_at <= ? ORDER BY expires_at LIMIT ?)"
)
REVISION: Final = (
    "SELECT CAST(coalesce(sum(version), 0) AS BIGINT) FROM config INDEXED BY config_version"
)


class SqlTables(Session):
    # The statement that walks a lane from queue to queue.
    walk_queues: ClassVar[str] = views.QUEUES

    def __init__(self, searchable: frozenset[str]) -> None:
        super().__init__()
        self._searchable = searchable

    # ---- rows

    def get(self, table: Table[K, V], key: K) -> V | None:
        if table is RECORDS:
            found = self.records(_RECORD, (key,))
            return cast(V, found[0]) if found else None
        layout = self.layouts[table]
        place = self.place(layout, key)
        if place is None:
            return None
        rows = self.rows(layout.get, place)
        return layout.unpack(rows[0]) if rows else None

    def get_many(self, table: Table[K, V], keys: Sequence[K]) -> dict[K, V]:
        if table is RECORDS:
            if len(keys) == 1:
                listed = self.records(_RECORD, keys)
            else:
                listed = self.records(_RECORDS, (self.listed(keys),))
            return cast(dict[K, V], {record.execution_id: record for record in listed})
        layout = self.layouts[table]
        if layout.is_single and len(keys) > 1:
            rows = self.rows(layout.get_many, (self.listed(keys),))
            return {row[0]: layout.unpack(row[1:]) for row in rows}
        if layout.is_owned and len(layout.key) == 2:
            return cast(dict[K, V], self._owned_rows(layout, cast(Sequence[tuple[str, Any]], keys)))
        if table is EDGES:
            return cast(dict[K, V], self._under(layout, cast(Sequence[tuple[str, str]], keys)))
        each = ((key, self.get(table, key)) for key in keys)
        return {key: value for key, value in each if value is not None}

    def _under(self, layout: Layout, keys: Sequence[tuple[str, str]]) -> dict[Any, Any]:
        """Rows of two-part keys: one statement for all with the same first part."""
        places: dict[str, list[str]] = {}
        for first, last in keys:
            places.setdefault(first, []).append(last)
        return {
            (first, row[0]): layout.unpack(row[1:])
            for first, names in places.items()
            for row in self.rows(layout.get_under, (first, self.listed(names)))
        }

    def _owned_rows(self, layout: Layout, keys: Sequence[tuple[str, Any]]) -> dict[Any, Any]:
        """Rows of many executions: one statement for all that have the same name."""
        places: dict[Any, dict[int, Any]] = {}
        for key in keys:
            seq = self.seq(key[0])
            if seq is not None:
                places.setdefault(key[1], {})[seq] = key
        return {
            owners[row[0]]: layout.unpack(row[1:])
            for name, owners in places.items()
            for row in self.rows(layout.get_beside, (self.listed([*owners]), name))
        }

    def range(
        self, table: Table[K, V], prefix: tuple[Any, ...], after: K | None, limit: int
    ) -> list[tuple[K, V]]:
        layout = self.layouts[table]
        place = self.place(layout, prefix)
        if place is None:
            return []
        depth = len(prefix)
        behind = cast(tuple[Any, ...], after or ())[depth:]
        rows = self.rows(layout.ranges[depth, bool(behind)], (*place, *behind, limit))
        width = len(layout.key) - depth
        found = [(prefix + row[:width], layout.unpack(row[width:])) for row in rows]
        return cast(list[tuple[K, V]], found)

    def scan(self, table: Table[K, V], after: K | None, limit: int) -> list[tuple[K, V]]:
        if table is RECORDS:
            walked = self.records(_WALK, (after or "", limit))
            return cast(list[tuple[K, V]], [(record.execution_id, record) for record in walked])
        layout = self.layouts[table]
        place: tuple[Any, ...] = ()
        if after is not None:
            place = after if isinstance(after, tuple) else (after,)
        first = place[:1] if layout.is_owned else ()
        rows = self.rows(layout.scans[bool(place)], (*first, *place, limit))
        width = len(layout.key)
        if layout.is_single:
            return [(row[0], layout.unpack(row[1:])) for row in rows]
        found = [(row[:width], layout.unpack(row[width:])) for row in rows]
        return cast(list[tuple[K, V]], found)

    def count(self, table: Table[Any, Any], prefix: tuple[Any, ...]) -> int:
        layout = self.layouts[table]
        place = self.place(layout, prefix)
        if place is None:
            return 0
        return int(self.rows(layout.counts[len(prefix)], place)[0][0])

    def ordered(
        self, order: Order[K, V], bucket: Key, after: Key | None, upto: int | None, limit: int
    ) -> list[tuple[K, V]]:
        layout = self.layouts[order.table]
        columns = (*layout.key, *layout.read)
        rows = self._walked(order, columns, (bucket, after, upto, limit))
        width = len(layout.key)
        if layout.is_single:
            return [(row[0], layout.unpack(row[1:])) for row in rows]
        return [(cast(K, row[:width]), layout.unpack(row[width:])) for row in rows]

    def places(
        self, order: Order[Any, Any], bucket: Key, after: Key | None, upto: int | None, limit: int
    ) -> list[Key]:
        return self._walked(order, views.COLUMNS[order].order, (bucket, after, upto, limit))

    def _walked(
        self,
        order: Order[Any, Any],
        columns: tuple[str, ...],
        span: tuple[Key, Key | None, int | None, int],
    ) -> list[Row]:
        bucket, after, upto, limit = span
        statement = views.walk_order(
            order, columns, behind=after is not None, bounded=upto is not None
        )
        bound = () if upto is None else (upto,)
        return self.rows(statement, (*bucket, *(after or ()), *bound, limit))

    # ---- views

    def view(
        self, name: str, key: Key, after: Key | None, limit: int, *, newest: bool = False
    ) -> list[Record]:
        place = () if after is None else views.padded(name, after)
        bounds = views.partition_bounds(key[0]) if name == views.PARTITION else ()
        given = place + bounds if bounds else key + place
        statement = views.walk(name, behind=bool(place), newest=newest)
        return self.records(statement, (*given, limit))

    def claimable(self, key: Key, after: Key | None, limit: int) -> tuple[list[Record], bool]:
        records = self.view("claimable", key, after, limit + 1)
        return records[:limit], len(records) > limit

    def open_queues(self, queues: Sequence[Key], limit: int) -> None:
        """Reading them one by one is as fast."""

    def queues(self, lane: Key, start: str, limit: int) -> list[QueueHead]:
        rows = self.rows(self.walk_queues, (*lane, start, *lane, limit))
        return [(row[0], row[1], row[2]) for row in rows]

    def view_places(self, name: str, key: Key, after: Key | None, limit: int) -> list[Key]:
        statement = views.places(name, behind=after is not None)
        return [tuple(row) for row in self.rows(statement, (*key, *(after or ()), limit))]

    def tagged(
        self, namespace: str, tag: tuple[str, str], after: Key | None, limit: int, *, newest: bool
    ) -> list[Record]:
        statement = tagged(self.record_key, behind=bool(after), newest=newest)
        return self.records(statement, (namespace, *tag, *(after or ()), limit))

    def view_keys(self, name: str, prefix: Key) -> list[tuple[Key, int, Key]]:
        if name == views.PARTITION:
            return self._partitions(prefix)
        size = len(BY_NAME[name].key)
        first = views.first(name)
        return [
            (row[:size], row[size], self.rows(first, row[:size])[0])
            for row in self.rows(views.sizes(name, len(prefix)), prefix)
            if row[size]
        ]

    def _partitions(self, prefix: Key) -> list[tuple[Key, int, Key]]:
        found: list[tuple[Key, int, Key]] = []
        for part, first in self._parts():
            if prefix in ((), (part,)):
                size = self.rows(views.PARTITION_SIZE, views.partition_bounds(part))[0][0]
                found.append(((part,), size, (first,)))
        return found

    def _parts(self) -> list[tuple[int, str]]:
        """Partitions that have records, each with its first id: one index search for each."""
        found: list[tuple[int, str]] = []
        start = ""
        while rows := self.rows(views.NEXT_PARTITION, (start,)):
            first = rows[0][0]
            found.append((partition_of(first), first))
            start = views.partition_bounds(found[-1][0])[1]
        return sorted(found)

    def view_entries(self, name: str, after: Entry | None, limit: int) -> list[Entry]:
        if name == views.PARTITION:
            return self._partition_entries(after, limit)
        width, statement = views.entries(name, behind=after is not None)
        place = (*after.key, *after.order) if after is not None else ()
        rows = self.rows(statement, (*place, limit))
        return [Entry(name, row[:width], row[width:]) for row in rows]

    def _partition_entries(self, after: Entry | None, limit: int) -> list[Entry]:
        last, behind = (after.key[0], after.order[0]) if after is not None else (-1, "")
        found: list[Entry] = []
        for part, _ in self._parts():
            if part < int(last):
                continue
            start, end = views.partition_bounds(part)
            place = (behind if part == last else start, end, limit - len(found))
            rows = self.rows(views.PARTITION_IDS, place)
            found += [Entry(views.PARTITION, (part,), row) for row in rows]
        return found

    # ---- flows

    def outgoing(self, source: str, after: str, limit: int) -> list[Edge]:
        return [decode_edge(row[0]) for row in self.rows(_OUTGOING, (source, after, limit))]

    def incoming(self, target: str, after: str, limit: int) -> list[Edge]:
        return [decode_edge(row[0]) for row in self.rows(_INCOMING, (target, after, limit))]

    def flow_edges(self, flow_id: str, after: str, limit: int) -> list[Edge]:
        return [decode_edge(row[0]) for row in self.rows(_FLOW_EDGES, (flow_id, after, limit))]

    def due_flows(self, now: int, limit: int, after: tuple[int, str] | None = None) -> list[Flow]:
        rows = self.rows(_DUE_FLOWS, (*(after or (0, "")), now, limit))
        return [decode_flow(row[0]) for row in rows]

    def flows_in(self, partition: int, after: str, limit: int) -> list[Flow]:
        return [decode_flow(row[0]) for row in self.rows(_FLOWS_IN, (partition, after, limit))]

    def flows_by_age(
        self, after: tuple[int, str] | None, limit: int, *, newest: bool
    ) -> list[Flow]:
        statement = _FLOWS_NEWEST_FIRST if newest else _FLOWS_OLDEST_FIRST
        start = after or ((_NEVER, "") if newest else (-1, ""))
        return [decode_flow(row[0]) for row in self.rows(statement, (*start, limit))]

    def purgeable_flows(self, now: int, limit: int) -> list[Flow]:
        return [decode_flow(row[0]) for row in self.rows(_PURGEABLE_FLOWS, (now, limit))]

    # ---- journal, log, keys, config

    def journal_rows(self, execution_id: str, after: int, limit: int) -> list[JournalRow]:
        seq = self.seq(execution_id)
        if seq is None:
            return []
        return [decode_journal(row[0]) for row in self.rows(_JOURNAL, (seq, after, limit))]

    def journal_length(self, execution_id: str) -> int:
        seq = self.seq(execution_id)
        return 0 if seq is None else int(self.rows(_JOURNAL_END, (seq,))[0][0])

    def log_rows(self, after: int, limit: int) -> list[LogRow]:
        rows = self.rows(_LOG_ROWS, (after, limit))
        return [LogRow(number, decode_entry(body)) for number, body in rows]

    def log_bounds(self) -> tuple[int, int]:
        first, last = self.rows(_LOG_BOUNDS)[0]
        if last is None:
            first = last = self.last_log_number()
        return first, last

    @abstractmethod
    def last_log_number(self) -> int: ...

    def trim_log(self, before: int, keep: int) -> int:
        first, last = self.log_bounds()
        most = min(last, first + MOST_TRIMMED)
        fresh = self.rows(_LOG_FRESH, (most, before))
        stale = fresh[0][0] - 1 if fresh else most
        end = min(max(stale, last - keep), most)
        return self.drop_log(end) if end > first else 0

    def drop_log(self, end: int) -> int:
        """Drop the entries up to a number."""
        return self.change(_LOG_TRIM, (end,))

    def drop_expired_keys(self, now: int, limit: int) -> int:
        return self.change(_EXPIRED_KEYS, (now, limit))

    def drop_under(self, tables: Sequence[Table[Any, Any]], firsts: Sequence[str]) -> int:
        statements: list[tuple[str, Row]] = []
        for table in tables:
            layout = self.layouts[table]
            places = (self.place(layout, (first,)) for first in firsts)
            listed = self.listed([place[0] for place in places if place is not None])
            statements.append((layout.delete_under, (listed,)))
        return sum(self.change_each(statements))

    def config_revision(self) -> int:
        return int(self.rows(REVISION)[0][0])

    def write(self, changes: Changes) -> None:
        try:
            write_changes(self, changes, self._searchable)
        except Exception as fault:
            # Some rows are written already: whatever it was, the transaction cannot be kept.
            self.fault = self.fault or fault
            raise
