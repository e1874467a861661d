"""One transaction of the reference: reads through, gathers writes, undoes a failed item."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from flowfabric.backend.base import (
    LOG_TOPIC,
    end_topic,
    queue_notice,
    stream_topic,
    worker_topic,
)
from flowfabric.backend.reference.tables import (
    ATTEMPTS,
    BLOBS,
    DOCUMENTS,
    EDGES,
    FLOWS,
    GROUPS,
    JOURNAL,
    KEPT,
    RECORDS,
    Changes,
    JournalRow,
    Order,
    Put,
    Table,
    Tables,
)
from flowfabric.core.documents import Document
from flowfabric.core.events import LogEntry, is_kept
from flowfabric.core.graph import Edge, Flow, Group, edge_key
from flowfabric.core.journal import JournalEntry
from flowfabric.core.plan import Blob, Fence
from flowfabric.core.record import Record
from flowfabric.core.states import FINAL, State
from flowfabric.core.transition import Transition
from flowfabric.core.views import Key, is_in, is_offered
from flowfabric.errors import FlowFabricError

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")
_ABSENT: Final = object()
_PAGE: Final = 1_000
# Entries of a journal may be large.
_ENTRIES_A_READ: Final = 16
# Fewer rows are loaded faster one by one.
_WORTH_FETCHING: Final = 4


class Transaction:
    """Rows as one step sees them. Later items of a batch see what earlier ones wrote; an item that
    raises leaves nothing behind."""

    def __init__(self, tables: Tables, now: int, searchable: frozenset[str] = frozenset()) -> None:
        self.tables = tables
        self.now = now
        self.searchable = searchable
        self.topics: set[str] = set()
        self.rows_written = 0
        # What became of siblings that were to be cancelled.
        self.siblings: list[str] = []
        self._seen: dict[Table[Any, Any], dict[Any, Any]] = {}
        self._dirty: dict[Table[Any, Any], dict[Any, Any]] = {}
        self._log: list[LogEntry] = []
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []
        # Which edges at a member were written since the last flush.
        self._touched: dict[str, set[tuple[str, str]]] = {}

    # ---- items

    def item(self, work: Callable[[], T]) -> T:
        """Run one item of a batch; if it raises, its writes are taken back."""
        self._undo.clear()
        logged, counted = len(self._log), len(self.siblings)
        try:
            return work()
        except Exception:
            for layer, key, old in reversed(self._undo):
                if old is _ABSENT:
                    layer.pop(key, None)
                else:
                    layer[key] = old
            # Its topics stay: a needless notification is harmless.
            del self._log[logged:]
            del self.siblings[counted:]
            raise

    def item_each(self, keys: Iterable[K], work: Callable[[K], None]) -> None:
        """Prepare for a batch, once per key. An error is dropped: the item that needs the key meets
        it again, and answers it."""
        for key in dict.fromkeys(keys):
            with suppress(FlowFabricError):
                self.item(partial(work, key))

    def flush(self) -> None:
        """Hand all finished items over, so that views and ranges show them."""
        if not self._dirty and not self._log:
            return
        seen = self._seen
        puts: dict[Table[Any, Any], list[Put]] = {}
        for table, layer in self._dirty.items():
            known = seen.setdefault(table, {})
            puts[table] = [Put(key, value, known.get(key)) for key, value in layer.items()]
            known.update(layer)
        self.tables.write(Changes(puts, self._log))
        self._dirty = {}
        self._log = []
        self._touched = {}
        self._undo.clear()

    # ---- tables

    def get(self, table: Table[K, V], key: K) -> V | None:
        layer = self._dirty.get(table)
        if layer is not None:
            value = layer.get(key, _ABSENT)
            if value is not _ABSENT:
                return value  # type: ignore[no-any-return]
        seen = self._seen.get(table)
        if seen is None:
            seen = self._seen[table] = {}
        value = seen.get(key, _ABSENT)
        if value is _ABSENT:
            value = seen[key] = self.tables.get(table, key)
        return value  # type: ignore[no-any-return]

    def put(self, table: Table[K, V], key: K, value: V | None) -> None:
        layer = self._dirty.get(table)
        if layer is None:
            layer = self._dirty[table] = {}
        old = layer.get(key, _ABSENT)
        if old is _ABSENT:
            self.rows_written += 1
        self._undo.append((layer, key, old))
        layer[key] = value

    def insert(self, table: Table[K, V], key: K, value: V) -> None:
        """Put a row whose key cannot exist yet, without looking for it."""
        self._seen.setdefault(table, {})[key] = None
        self.put(table, key, value)

    def drop_range(self, table: Table[Any, Any], *prefix: str | int) -> int:
        """Delete the rows whose key begins like this; how many there were."""
        dropped, after = 0, None
        while rows := self.tables.range(table, prefix, after, _PAGE):
            for key, _ in rows:
                self.put(table, key, None)
            dropped += len(rows)
            after = rows[-1][0]
        return dropped

    def fetch(self, table: Table[K, V], keys: Iterable[K]) -> None:
        """Load rows in one go that the next items will ask for."""
        seen = self._seen.setdefault(table, {})
        dirty = self._dirty.get(table, {})
        wanted = [key for key in dict.fromkeys(keys) if key not in seen and key not in dirty]
        if wanted:
            found = self.tables.get_many(table, wanted)
            for key in wanted:
                seen[key] = found.get(key)

    def ordered(
        self, order: Order[K, V], bucket: Key, after: Key | None, upto: int | None, limit: int
    ) -> list[tuple[K, V]]:
        """Rows in one of their table's orders. Of what was written since the last flush, changed
        rows show their new value, dropped ones are left out and new ones are not there yet."""
        rows = self.tables.ordered(order, bucket, after, upto, limit)
        layer = self._dirty.get(order.table)
        if not layer:
            return rows
        found: list[tuple[K, V]] = []
        while rows:
            news = ((key, layer.get(key, value)) for key, value in rows)
            found += [(key, value) for key, value in news if value is not None]
            last = order.place(*rows[-1])
            if last is None or len(rows) < limit or len(found) >= limit:
                break
            rows = self.tables.ordered(order, bucket, last[1], upto, limit)
        return found[:limit]

    def notice(self, records: Iterable[Record]) -> None:
        """Remember records that a view has just returned, so that they are not loaded again."""
        seen = self._seen.setdefault(RECORDS, {})
        for record in records:
            seen[record.execution_id] = record

    def notify(self, topic: str) -> None:
        self.topics.add(topic)

    # ---- rows around a record

    def record(self, execution_id: str) -> Record | None:
        return self.get(RECORDS, execution_id)

    def flow(self, flow_id: str) -> Flow | None:
        return self.get(FLOWS, flow_id)

    def group(self, target: str) -> Group | None:
        return self.get(GROUPS, target)

    def outgoing(self, source: str, after: str, limit: int) -> Sequence[Edge]:
        return self._edges(self.tables.outgoing, source, after, limit)

    def incoming(self, target: str, after: str, limit: int) -> Sequence[Edge]:
        return self._edges(self.tables.incoming, target, after, limit)

    def edge(self, flow_id: str, edge_id: str) -> Edge | None:
        return self.get(EDGES, (flow_id, edge_id))

    def expect(self, members: Sequence[str]) -> None:
        if len(members) >= _WORTH_FETCHING:
            self.fetch(RECORDS, members)
            self.fetch(GROUPS, members)

    def members_in(
        self, flow_id: str, state: State, after: tuple[int, str] | None, limit: int
    ) -> Sequence[tuple[int, str]]:
        return self._still_in("flow", (flow_id, state), after, limit)

    def tied_children(
        self, parent_id: str, after: tuple[int, str] | None, limit: int
    ) -> Sequence[tuple[int, str]]:
        return self._still_in("children", (parent_id, 1), after, limit)

    def _still_in(
        self, view: str, key: Key, after: tuple[int, str] | None, limit: int
    ) -> Sequence[tuple[int, str]]:
        """Records written since the last flush are not there yet unless they were before."""
        changed = self._dirty.get(RECORDS, {})
        found: list[tuple[int, str]] = []
        while len(found) < limit:
            places = self.tables.view_places(view, key, after, limit)
            for created_at, execution_id in places:
                record = changed.get(execution_id)
                if record is None or is_in(record, view, key):
                    found.append((int(created_at), str(execution_id)))
            if len(places) < limit:
                break
            after = (int(places[-1][0]), str(places[-1][1]))
        return found[:limit]

    def _edges(
        self,
        read: Callable[[str, str, int], list[Edge]],
        execution_id: str,
        after: str,
        limit: int,
    ) -> Sequence[Edge]:
        stored = read(execution_id, after, limit)
        touched = self._touched.get(execution_id)
        if touched is None:
            return stored
        end = "source" if read == self.tables.outgoing else "target"
        merged = {edge.edge_id: edge for edge in stored}
        for key in touched:
            edge = self.get(EDGES, key) if key[1] > after else None
            if edge is not None and getattr(edge, end) == execution_id:
                merged[edge.edge_id] = edge
        return [merged[edge_id] for edge_id in sorted(merged)][:limit]

    def write(self, transition: Transition) -> None:
        after = transition.after
        self.put(RECORDS, after.execution_id, after)
        if transition.ended is not None:
            self.put(ATTEMPTS, (after.execution_id, transition.ended.index), transition.ended)
        if transition.entry is not None:
            self.log(transition.entry)
            if is_kept(transition.entry):
                self.put(KEPT, (after.execution_id, after.version), transition.entry)
        self._notify_of(transition)

    def _notify_of(self, transition: Transition) -> None:
        before, after = transition.before, transition.after
        if is_offered(after) and not (before and is_offered(before)):
            self.topics.add(queue_notice(after.namespace, after.lane, after.req_set))
        attempt = transition.ended or after.attempt
        if attempt is not None and attempt.closed_at == self.now:
            self.topics.add(stream_topic(after.execution_id, attempt.index))
        if after.state in FINAL and not (before and before.state in FINAL):
            self.topics.add(end_topic(after.execution_id))
        if transition.taken_from:
            self.topics.add(worker_topic(transition.taken_from))

    def put_blobs(self, execution_id: str, blobs: Mapping[Blob, bytes | None]) -> None:
        for name, body in blobs.items():
            self.put(BLOBS, (execution_id, name), body)

    def put_documents(self, execution_id: str, documents: Mapping[str, bytes | None]) -> None:
        for name, body in documents.items():
            key = (execution_id, name)
            if body is None:
                self.put(DOCUMENTS, key, None)
                continue
            found = self.get(DOCUMENTS, key)
            first_at = found.first_at if found else self.now
            self.put(DOCUMENTS, key, Document(body, first_at, self.now))

    def drop_journal(self, execution_id: str, first: int) -> None:
        if first == 1:
            self.drop_range(JOURNAL, execution_id)
            return
        after = first - 1
        while rows := self.tables.journal_rows(execution_id, after, _ENTRIES_A_READ):
            for row in rows:
                self.put(JOURNAL, (execution_id, row.entry.name, row.entry.seq), None)
            after = rows[-1].number

    def add_steps(self, execution_id: str, steps: Sequence[JournalEntry]) -> None:
        """They are counted in the tables: a batch flushes what was journaled before it."""
        keyed = {(execution_id, one.name, one.seq): one for one in steps}
        new = [(key, one) for key, one in keyed.items() if self.get(JOURNAL, key) is None]
        if not new:
            return
        length = self.tables.journal_length(execution_id)
        for number, (key, entry) in enumerate(new, start=length + 1):
            self.insert(JOURNAL, key, JournalRow(number, entry))

    def copy_result(self, source: str, target: str) -> int:
        result = self.get(BLOBS, (source, "result"))
        if result is None:
            return 0
        self.put(BLOBS, (target, "input"), result)
        return len(result)

    def put_edge(self, edge: Edge) -> None:
        if not edge.created_at:
            edge = msgspec.structs.replace(edge, created_at=self.now)
        key = edge_key(edge)
        for end in (edge.source, edge.target):
            touched = self._touched.get(end)
            if touched is None:
                self._touched[end] = {key}
            else:
                touched.add(key)
        self.put(EDGES, key, edge)

    def put_group(self, group: Group) -> None:
        self.put(GROUPS, group.target, group)

    def put_flow(self, flow: Flow) -> None:
        self.put(FLOWS, flow.flow_id, flow)

    def log(self, entry: LogEntry) -> None:
        if entry.tags:
            searchable = {key: entry.tags[key] for key in self.searchable if key in entry.tags}
            entry = msgspec.structs.replace(entry, tags=searchable)
        self._log.append(entry)
        self.rows_written += 1
        self.topics.add(LOG_TOPIC)

    def count_sibling(self, disposition: str) -> None:
        self.siblings.append(disposition)


def is_held(record: Record, fence: Fence, now: int) -> bool:
    """Whether this is the fence of the record's lease, and the lease still runs. Only then may its
    holder write rows of the execution without writing the record."""
    return (
        record.state == "active"
        and record.lease_id == fence.lease_id
        and record.lease_epoch == fence.lease_epoch
        and record.attempt_id == fence.attempt_id
        and record.lease_until > now
    )
