"""The reference's tables as dicts. What orders or finds rows is derived from each row as it is
written; no method adds to or removes from an index by hand."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar

from flowfabric.backend.reference.buckets import Buckets, GroupedBuckets, Rows
from flowfabric.backend.reference.limit_tables import ORDERS
from flowfabric.backend.reference.tables import (
    CONFIG,
    CONFIG_TIMERS,
    EDGES,
    FLOWS,
    JOURNAL,
    KEYS,
    RECORDS,
    Changes,
    JournalRow,
    LogRow,
    Order,
    QueueHead,
    Table,
    Tables,
)
from flowfabric.core.graph import Edge, Flow
from flowfabric.core.new_execution import KeyEntry
from flowfabric.core.record import Record
from flowfabric.core.retention import flow_purge_at
from flowfabric.core.views import Entry, Key, entries, tag_entries

K = TypeVar("K")
V = TypeVar("V")

_NOWHERE: Final[Key] = ()


class MemoryTables(Tables):
    """Everything in this process, gone with it."""

    def __init__(self, searchable: frozenset[str] = frozenset()) -> None:
        self.searchable = searchable
        self._tables: defaultdict[Table[Any, Any], Rows[Any, Any]] = defaultdict(Rows)
        self._buckets: defaultdict[str, Buckets] = defaultdict(Buckets)
        self._buckets["claimable"] = self._queues = GroupedBuckets()
        self._log: list[LogRow] = []
        self._log_end = 0
        self._config_revision = 0
        self._records: dict[Any, Record] = self._tables[RECORDS].by_key
        self._places: dict[Table[Any, Any], Callable[[Any, Any], Iterable[Entry]]] = {
            RECORDS: self._record_places,
            FLOWS: _flow_places,
            EDGES: _edge_places,
            JOURNAL: _journal_places,
            KEYS: _key_places,
            **_ordered_places(),
        }

    # ---- rows

    def get(self, table: Table[K, V], key: K) -> V | None:
        return self._tables[table].by_key.get(key)

    def get_many(self, table: Table[K, V], keys: Sequence[K]) -> dict[K, V]:
        rows = self._tables[table].by_key
        return {key: rows[key] for key in keys if key in rows}

    def range(
        self, table: Table[K, V], prefix: tuple[Any, ...], after: K | None, limit: int
    ) -> list[tuple[K, V]]:
        rows = self._tables[table]
        return [(key, rows.by_key[key]) for key in islice(_under(rows, prefix, after), limit)]

    def scan(self, table: Table[K, V], after: K | None, limit: int) -> list[tuple[K, V]]:
        rows = self._tables[table]
        keys = rows.keys_behind(after)
        return [(key, rows.by_key[key]) for key in islice(keys, limit)]

    def count(self, table: Table[Any, Any], prefix: tuple[Any, ...]) -> int:
        return sum(1 for _ in _under(self._tables[table], prefix, None))

    def ordered(
        self, order: Order[K, V], bucket: Key, after: Key | None, upto: int | None, limit: int
    ) -> list[tuple[K, V]]:
        rows = self._tables[order.table].by_key
        places = self.places(order, bucket, after, upto, limit)
        keys = (order.key(bucket, place) for place in places)
        return [(key, rows[key]) for key in keys]

    def places(
        self, order: Order[Any, Any], bucket: Key, after: Key | None, upto: int | None, limit: int
    ) -> list[Key]:
        before = None if upto is None else (upto + 1,)
        return self._buckets[order.name].walk(bucket, after, limit, before=before)

    # ---- edges, journal and flows

    def outgoing(self, source: str, after: str, limit: int) -> list[Edge]:
        return self._edges("outgoing", source, after, limit)

    def incoming(self, target: str, after: str, limit: int) -> list[Edge]:
        return self._edges("incoming", target, after, limit)

    def flow_edges(self, flow_id: str, after: str, limit: int) -> list[Edge]:
        return self._edges("flow_edges", flow_id, after, limit)

    def _edges(self, bucket: str, end: str, after: str, limit: int) -> list[Edge]:
        rows = self._tables[EDGES].by_key
        # Behind every edge of that id, whichever flow it belongs to.
        places = self._buckets[bucket].walk((end,), (f"{after}\0",), limit)
        return [rows[flow_id, edge_id] for edge_id, flow_id in places]

    def journal_rows(self, execution_id: str, after: int, limit: int) -> list[JournalRow]:
        rows = self._tables[JOURNAL].by_key
        # A bare number sorts before the entry that has it.
        orders = self._buckets["journal"].walk((execution_id,), (after + 1,), limit)
        return [rows[(execution_id, name, seq)] for _, name, seq in orders]

    def journal_length(self, execution_id: str) -> int:
        return self._buckets["journal"].size((execution_id,))

    def due_flows(self, now: int, limit: int, after: tuple[int, str] | None = None) -> list[Flow]:
        return self._flows("due_flows", now, limit, after)

    def flows_in(self, partition: int, after: str, limit: int) -> list[Flow]:
        rows = self._tables[FLOWS].by_key
        orders = self._buckets["flows_in"].walk((partition,), (after,), limit)
        return [rows[order[0]] for order in orders]

    def flows_by_age(
        self, after: tuple[int, str] | None, limit: int, *, newest: bool
    ) -> list[Flow]:
        rows = self._tables[FLOWS].by_key
        orders = self._buckets["flow_ages"].walk(_NOWHERE, after, limit, newest=newest)
        return [rows[order[1]] for order in orders]

    def purgeable_flows(self, now: int, limit: int) -> list[Flow]:
        return self._flows("purgeable_flows", now, limit, None)

    def _flows(self, bucket: str, now: int, limit: int, after: Key | None) -> list[Flow]:
        rows = self._tables[FLOWS].by_key
        orders = self._buckets[bucket].walk(_NOWHERE, after, limit)
        return [rows[order[1]] for order in orders if order[0] <= now]

    # ---- views

    def view(
        self, name: str, key: Key, after: Key | None, limit: int, *, newest: bool = False
    ) -> list[Record]:
        records = self._records
        orders = self._buckets[name].walk(key, after, limit, newest=newest)
        return [records[order[-1]] for order in orders]

    def claimable(self, key: Key, after: Key | None, limit: int) -> tuple[list[Record], bool]:
        records = self.view("claimable", key, after, limit + 1)
        return records[:limit], len(records) > limit

    def open_queues(self, queues: Sequence[Key], limit: int) -> None:
        """Reading them one by one is as fast."""

    def queues(self, lane: Key, start: str, limit: int) -> list[QueueHead]:
        heads: list[QueueHead] = []
        for name in islice(self._queues.names_from(lane, start), limit):
            rank, execution_id = self._queues.first((*lane, name))
            heads.append((str(name), int(rank), str(execution_id)))
        return heads

    def view_places(self, name: str, key: Key, after: Key | None, limit: int) -> list[Key]:
        return self._buckets[name].walk(key, after, limit)

    def tagged(
        self, namespace: str, tag: tuple[str, str], after: Key | None, limit: int, *, newest: bool
    ) -> list[Record]:
        return self.view("tag", (namespace, *tag), after, limit, newest=newest)

    def view_keys(self, name: str, prefix: Key) -> list[tuple[Key, int, Key]]:
        buckets = self._buckets[name]
        return [(key, buckets.size(key), buckets.first(key)) for key in buckets.keys_under(prefix)]

    def view_entries(self, name: str, after: Entry | None, limit: int) -> list[Entry]:
        found: list[Entry] = []
        buckets = self._buckets[name]
        for key in buckets.keys_under():
            if after is not None and key < after.key:
                continue
            behind = after.order if after is not None and key == after.key else None
            orders = buckets.walk(key, behind, limit - len(found))
            found += [Entry(name, key, order) for order in orders]
            if len(found) >= limit:
                break
        return found

    # ---- log, keys and config

    def log_rows(self, after: int, limit: int) -> list[LogRow]:
        start = max(0, after - self.log_bounds()[0])
        return self._log[start : start + limit]

    def log_bounds(self) -> tuple[int, int]:
        return self._log_end - len(self._log), self._log_end

    def last_log_number(self) -> int:
        return self._log_end

    def trim_log(self, before: int, keep: int) -> int:
        gone = max(0, len(self._log) - keep)
        while gone < len(self._log) and self._log[gone].entry.at < before:
            gone += 1
        del self._log[:gone]
        return gone

    def drop_expired_keys(self, now: int, limit: int) -> int:
        orders = self._buckets["expiring_keys"].walk(_NOWHERE, None, limit)
        expired = [order for order in orders if order[0] <= now]
        for _, scope, key in expired:
            self._put(KEYS, (scope, key), None)
        return len(expired)

    def drop_under(self, tables: Sequence[Table[Any, Any]], firsts: Sequence[str]) -> int:
        gone = [
            (table, key)
            for table in tables
            for first in firsts
            for key in _under(self._tables[table], (first,), None)
        ]
        for table, key in gone:
            self._put(table, key, None)
        return len(gone)

    def config_revision(self) -> int:
        return self._config_revision

    # ---- writes

    def write(self, changes: Changes) -> None:
        for table, puts in changes.puts.items():
            for key, value, _ in puts:
                self._put(table, key, value)
        for entry in changes.log:
            self._log_end += 1
            self._log.append(LogRow(self._log_end, entry))

    def _put(self, table: Table[Any, Any], key: Any, value: Any) -> None:
        rows = self._tables[table]
        places = self._places.get(table)
        if places is not None:
            before = rows.by_key.get(key)
            self._move(
                set(places(key, before)) if before is not None else set(),
                set(places(key, value)) if value is not None else set(),
            )
        if table is CONFIG and value is not None:
            found = rows.by_key.get(key)
            self._config_revision += value.version - (found.version if found else 0)
        if value is None:
            rows.drop(key)
        else:
            rows.put(key, value)

    def _move(self, before: set[Entry], after: set[Entry]) -> None:
        buckets = self._buckets
        for view, key, order in after - before:
            buckets[view].add(key, order)
        for view, key, order in before - after:
            buckets[view].remove(key, order)

    def _record_places(self, execution_id: str, record: Record) -> Iterable[Entry]:
        if self.searchable and record.tags:
            return (*entries(record), *tag_entries(record, self.searchable))
        return entries(record)


def _under(rows: Rows[Any, Any], prefix: tuple[Any, ...], after: Any) -> Iterator[Any]:
    """Keys that begin with the prefix, in order, strictly behind `after`."""
    width = len(prefix)
    for key in rows.keys_behind(prefix if after is None else max(prefix, after)):
        if key[:width] != prefix:
            return
        yield key


def _flow_places(flow_id: str, flow: Flow) -> Iterator[Entry]:
    yield Entry("flows_in", (flow.partition,), (flow_id,))
    yield Entry("flow_ages", _NOWHERE, (flow.created_at, flow_id))
    if flow.due_at:
        yield Entry("due_flows", _NOWHERE, (flow.due_at, flow_id))
    if purge_at := flow_purge_at(flow):
        yield Entry("purgeable_flows", _NOWHERE, (purge_at, flow_id))


def _edge_places(key: tuple[str, str], edge: Edge) -> Iterator[Entry]:
    flow_id, edge_id = key
    yield Entry("outgoing", (edge.source,), (edge_id, flow_id))
    yield Entry("incoming", (edge.target,), (edge_id, flow_id))
    yield Entry("flow_edges", (flow_id,), (edge_id, flow_id))


def _journal_places(key: tuple[str, str, int], row: JournalRow) -> Iterator[Entry]:
    execution_id, name, seq = key
    yield Entry("journal", (execution_id,), (row.number, name, seq))


def _key_places(key: tuple[str, str], entry: KeyEntry) -> Iterator[Entry]:
    yield Entry("expiring_keys", _NOWHERE, (entry.expires_at, *key))


def _ordered_places() -> dict[Table[Any, Any], Callable[[Any, Any], Iterable[Entry]]]:
    """Where rows of the tables that have further orders stand in each of them."""
    orders: defaultdict[Table[Any, Any], list[Order[Any, Any]]] = defaultdict(list)
    for order in (*ORDERS, CONFIG_TIMERS):
        orders[order.table].append(order)
    return {table: partial(_places_in, tuple(found)) for table, found in orders.items()}


def _places_in(orders: Sequence[Order[Any, Any]], key: Any, value: Any) -> Iterator[Entry]:
    for order in orders:
        place = order.place(key, value)
        if place is not None:
            yield Entry(order.name, *place)
