"""Reads of records with their attempts, documents and upstreams: by id, by due time, counted."""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final, TypeVar

from flowfabric.backend.reference.flows import is_flow_among
from flowfabric.backend.reference.limit_tables import TIMERS
from flowfabric.backend.reference.tables import (
    ATTEMPTS,
    BLOBS,
    CONFIG_TIMERS,
    DOCUMENTS,
    KEPT,
    RECORDS,
    Table,
)
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.types import NO_DOCUMENTS, DuePage, Named, Queue, Seen, With
from flowfabric.core.documents import SUSPENSION, WAITPOINTS, Document
from flowfabric.core.events import HistoryEntry, history_of
from flowfabric.core.graph import INPUT, UPSTREAM_BYTES, Edge, Upstream
from flowfabric.core.ids import partition_of
from flowfabric.core.record import Attempt, Record
from flowfabric.core.views import Key

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")

# How much of a long history is shown.
HISTORY: Final = 1_000
# A search for due things of some partitions looks at no more than this many of all.
MOST_LOOKS: Final = 10_000
_ROWS: Final = 10_000
_PAGE: Final = 1_000

Moment = tuple[int, str]


def read(
    tx: Transaction,
    ids: Sequence[str],
    include: frozenset[With],
    documents: Named = NO_DOCUMENTS,
) -> list[Seen | None]:
    tx.fetch(RECORDS, ids)
    records = [tx.record(execution_id) for execution_id in ids]
    return [
        _seen(tx, record, include, documents.get(record.execution_id, ())) if record else None
        for record in records
    ]


def _seen(
    tx: Transaction, record: Record, include: frozenset[With], names: Collection[str]
) -> Seen:
    own = record.execution_id
    with_group = "group" in include
    return Seen(
        record=record,
        now=tx.now,
        input=tx.get(BLOBS, (own, "input")) if "input" in include else None,
        result=tx.get(BLOBS, (own, "result")) if "result" in include else None,
        attempts=_attempts(tx, record) if "attempts" in include else (),
        history=_history(tx, record) if "history" in include else (),
        documents=documents_of(tx, own, names),
        upstreams=_upstreams(tx, own, include),
        group=tx.group(own) if with_group else None,
        incoming=tuple(incoming_edges(tx, own)) if with_group else (),
    )


def _rows(tx: Transaction, table: Table[Any, V], execution_id: str) -> list[tuple[Any, V]]:
    return tx.tables.range(table, (execution_id,), None, _ROWS)


def _attempts(tx: Transaction, record: Record) -> tuple[Attempt, ...]:
    """All of them by index; the open one is in the record."""
    ended = [attempt for _, attempt in _rows(tx, ATTEMPTS, record.execution_id)]
    return (*ended, record.attempt) if record.attempt else tuple(ended)


def _history(tx: Transaction, record: Record) -> tuple[HistoryEntry, ...]:
    ended = (attempt for _, attempt in _rows(tx, ATTEMPTS, record.execution_id))
    kept = (entry for _, entry in _rows(tx, KEPT, record.execution_id))
    return tuple(history_of(record, ended, kept)[-HISTORY:])


def documents_of(tx: Transaction, execution_id: str, names: Collection[str]) -> dict[str, Document]:
    """The documents with these names, or with names that begin with one that ends in `*`."""
    found: dict[str, Document] = {}
    for name in names:
        if name.endswith("*"):
            found.update(_under(tx, execution_id, name[:-1]))
            continue
        document = tx.get(DOCUMENTS, (execution_id, name))
        if document is not None:
            found[name] = document
    return found


def _under(tx: Transaction, execution_id: str, prefix: str) -> Iterator[tuple[str, Document]]:
    after = (execution_id, prefix)
    while rows := tx.tables.range(DOCUMENTS, (execution_id,), after, _PAGE):
        for (_, name), document in rows:
            if not name.startswith(prefix):
                return
            yield name, document
        after = rows[-1][0]


def _upstreams(
    tx: Transaction, execution_id: str, include: frozenset[With]
) -> tuple[Upstream, ...]:
    if not include & {"upstreams", "upstream_results"}:
        return ()
    return upstreams_of(tx, execution_id, results="upstream_results" in include)


def due(
    tx: Transaction,
    limit: int,
    after: Moment | None = None,
    partitions: frozenset[int] = frozenset(),
) -> DuePage:
    """Records, flows, budgets and config documents whose time has come, each by (due_at, id) behind
    `after`, at most `limit` of each. The last two lie in none of the partitions and are shown to
    everybody."""
    tables, now = tx.tables, tx.now
    records, record_end = _walk(
        lambda after: _until(now, tables.view("timers", (), after, limit)),
        lambda record: (record.due_at, record.execution_id),
        after,
        limit,
        lambda record: not partitions or partition_of(record.execution_id) in partitions,
    )
    flows, flow_end = _walk(
        lambda after: tables.due_flows(now, limit, after),
        lambda flow: (flow.due_at, flow.flow_id),
        after,
        limit,
        lambda flow: not partitions or is_flow_among(tx, flow.flow_id, partitions),
    )
    budgets, budget_end = _walk(
        lambda after: tables.places(TIMERS, (), after, now, limit), _moment, after, limit
    )
    config, config_end = _walk(
        lambda after: tables.ordered(CONFIG_TIMERS, (), after, now, limit),
        lambda row: (row[1].due_at, row[0]),
        after,
        limit,
    )
    ends = [end for end in (record_end, flow_end, budget_end, config_end) if end is not None]
    include = {
        record.execution_id: documents_of(tx, record.execution_id, due_documents(record, now))
        for record in records
    }
    return DuePage(
        tuple(records),
        tuple(flows),
        now,
        min(ends, default=None),
        {own: documents for own, documents in include.items() if documents},
        tuple(map(_moment, budgets)),
        tuple(document for _, document in config),
    )


def _until(now: int, records: list[Record]) -> list[Record]:
    return [record for record in records if record.due_at <= now]


def _moment(place: Key) -> Moment:
    return int(place[0]), str(place[1])


def due_documents(record: Record, now: int) -> list[str]:
    """The documents that the decision about a due record looks at besides the record."""
    names = [SUSPENSION] if record.state == "suspended" else []
    if 0 < record.pending_until <= now:
        names.append(WAITPOINTS)
    return names


def _walk(
    page: Callable[[Moment | None], list[T]],
    moment: Callable[[T], Moment],
    after: Moment | None,
    limit: int,
    wanted: Callable[[T], bool] = lambda _: True,
) -> tuple[list[T], Moment | None]:
    """Up to `limit` wanted things, and where to go on; None when the walk came to the end. `page`
    reads up to `limit` behind a moment, and `moment` is that of one of them."""
    found: list[T] = []
    looks = MOST_LOOKS
    while len(found) < limit and looks > 0:
        rows = page(after)
        for row in rows:
            after = moment(row)
            if wanted(row):
                found.append(row)
                if len(found) == limit:
                    return found, after
        if len(rows) < limit:
            return found, None
        looks -= limit
    return found, after


def count(tx: Transaction, namespace: str, lane: str) -> dict[str, int]:
    """How many executions a lane (or, without one, the namespace) holds in each state; blocked
    ones apart by reason."""
    prefix = (namespace, lane) if lane else (namespace,)
    counts: dict[str, int] = {}
    for key, size, _ in tx.tables.view_keys("by_state", prefix):
        bucket = str(key[2])
        counts[bucket] = counts.get(bucket, 0) + size
    return counts


def queues(tx: Transaction, namespace: str, lane: str) -> list[Queue]:
    """What waits in a lane, per queue."""
    found = tx.tables.view_keys("claimable", (namespace, lane))
    tx.fetch(RECORDS, [str(first[1]) for _, _, first in found])
    queues: list[Queue] = []
    for key, size, (rank, first) in found:
        record = tx.record(str(first))
        queues.append(Queue(str(key[2]), size, int(rank), record.kind if record else ""))
    return queues


def upstreams_of(tx: Transaction, target: str, *, results: bool) -> tuple[Upstream, ...]:
    """One per counted inbound edge, in edge-id order; results of named ones while they fit."""
    room = UPSTREAM_BYTES if results else -1
    found: list[Upstream] = []
    for edge in incoming_edges(tx, target):
        if edge.state == "staged":
            continue
        upstream, size = _upstream(tx, edge, room)
        room -= size
        found.append(upstream)
    return tuple(found)


def incoming_edges(tx: Transaction, target: str) -> Iterator[Edge]:
    """All edges that lead to a member, by edge id."""
    after = ""
    while edges := tx.incoming(target, after, _PAGE):
        yield from edges
        after = edges[-1].edge_id


def _upstream(tx: Transaction, edge: Edge, room: int) -> tuple[Upstream, int]:
    named = edge.data_ref not in ("", INPUT) and edge.state == "satisfied"
    result = tx.get(BLOBS, (edge.source, "result")) if named and room >= 0 else None
    deferred = result is not None and len(result) > room
    source = tx.record(edge.source) if result is not None else None
    upstream = Upstream(
        edge_id=edge.edge_id,
        execution_id=edge.source,
        data_ref=edge.data_ref,
        outcome=edge.outcome,
        satisfied_at=edge.resolved_at if edge.state == "satisfied" else 0,
        result=None if deferred else result,
        result_encoding=source.result_encoding if source is not None else "",
        result_deferred=deferred,
    )
    return upstream, len(result) if result is not None and not deferred else 0
