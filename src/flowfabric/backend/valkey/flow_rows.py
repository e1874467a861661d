"""Flows, their members and edges as rows of the reference's tables."""

from collections.abc import Callable
from typing import Any, Final

from flowfabric.backend.reference import tables
from flowfabric.backend.reference.limit_tables import ATTACHED
from flowfabric.backend.valkey.calls import Read
from flowfabric.backend.valkey.commits import Snapshot, Stored, StoredTables, Writing
from flowfabric.backend.valkey.graph_rows import (
    INCOMING,
    OUTGOING,
    Searchable,
    edge_of,
    edges_of,
    flow_of,
    group_of,
    pack_edge,
    pack_flow,
    pack_group,
)
from flowfabric.backend.valkey.keys import CHILD_RANGES, FIELDS, FLOW_RANGE, stored_key
from flowfabric.backend.valkey.layout import ATTEMPT
from flowfabric.backend.valkey.packing import (
    Args,
    decode,
    encode,
    pack_entry,
    record_from,
    row_of,
    static_text,
)
from flowfabric.core.graph import Edge, Flow
from flowfabric.core.ids import uuid_of
from flowfabric.core.record import Record
from flowfabric.core.views import Key

_BLOBS: Final = {"input": FIELDS["input"], "result": FIELDS["result"]}

# A row of fairness is (partition, namespace, lane, key).
_Fair = tuple[int, str, str, str]


class StoredFlow(StoredTables):
    """The rows of one flow; without a flow only those that are asked for by their own key."""

    def __init__(
        self, snapshot: Snapshot, tag: str, searchable: Searchable, flow_id: str = ""
    ) -> None:
        self._tag = tag
        self._flow_id = flow_id
        self._searchable = searchable
        super().__init__(
            snapshot,
            {
                tables.FLOWS: Stored(
                    self._flow_reads, lambda own, row: flow_of(own, decode(row)), self._put_flow
                ),
                tables.RECORDS: Stored(_record_reads, _record, self._put_record),
                tables.GROUPS: Stored(
                    _group_reads, lambda own, row: group_of(own, decode(row)), _put_group
                ),
                tables.EDGES: Stored(
                    self._edge_reads, lambda own, row: edge_of(own[0], own[1], row), _put_edge
                ),
                tables.BLOBS: Stored(_blob_reads, _same, _put_blob),
                tables.ATTEMPTS: Stored(_unread, _same, _put_attempt),
                tables.KEPT: Stored(_unread, _same, _put_history),
                tables.FAIRNESS: Stored(self._fairness_reads, lambda _, n: int(n), _put_fairness),
                # Budgets lie elsewhere; they are written when the commit is done.
                ATTACHED: Stored(_unread, _same, _put_nothing),
            },
        )

    def outgoing(self, source: str, after: str, limit: int) -> list[Edge]:
        return self._edges(OUTGOING + uuid_of(source), after, limit)

    def incoming(self, target: str, after: str, limit: int) -> list[Edge]:
        return self._edges(INCOMING + uuid_of(target), after, limit)

    def view_places(self, name: str, key: Key, after: Key | None, limit: int) -> list[Key]:
        """Of all views the mechanisms that run here look at that of children alone."""
        parent_id, start = key[0], CHILD_RANGES[int(key[1])]
        view = stored_key("view", self._tag, f"{name}:{parent_id}")
        first, last = start + (int(after[0]) if after else 0), start + FLOW_RANGE - 1
        size = limit
        while True:
            words = ("ZRANGE", view, str(first), str(last), "BYSCORE", "LIMIT", "0", str(size))
            (flat,) = self._replies([(*words, "WITHSCORES")])
            pairs = zip(flat[::2], flat[1::2], strict=True)
            places: list[Key] = [(int(score) - start, own.decode()) for own, score in pairs]
            found = [place for place in places if after is None or place > after]
            if len(found) >= limit or len(places) < size:
                return found[:limit]
            size *= 2

    def _edges(self, name: str, after: str, limit: int) -> list[Edge]:
        (flat,) = self._replies([("edges", self._tag, self._flow_id, name, after, str(limit))])
        return list(edges_of(self._flow_id, flat))

    def _flow_reads(self, flow_id: str) -> list[Read]:
        return [("GET", stored_key("flow", self._tag, flow_id))]

    def _edge_reads(self, key: tuple[str, str]) -> list[Read]:
        return [("HGET", stored_key("edges", self._tag, key[0]), key[1])]

    def _fairness_reads(self, key: _Fair) -> list[Read]:
        _, namespace, lane, fairness_key = key
        return [("HGET", stored_key("fairness", self._tag, namespace), f"{lane},{fairness_key}")]

    def _put_flow(self, writing: Writing, args: Args) -> list[Any]:
        flow: Flow | None = writing.value
        number = args.put(encode(pack_flow(flow, self._searchable))) if flow is not None else 0
        return ["flow", writing.key, number]

    def _put_record(self, writing: Writing, args: Args) -> list[Any]:
        record: Record = writing.value
        static = static_text(record.execution_id, record)
        return [
            "record",
            writing.key,
            args.put(encode(row_of(record, self._searchable))),
            args.put(static) if writing.before is None else 0,
        ]


def _execution(execution_id: str) -> str:
    return stored_key("execution", execution_id)


def _unread(_: Any) -> list[Read]:
    return []


def _same(_: Any, reply: bytes) -> bytes:
    return reply


def _put_nothing(_: Writing, __: Args) -> None:
    return None


def _record_reads(execution_id: str) -> list[Read]:
    return [("HMGET", _execution(execution_id), FIELDS["record"], FIELDS["static"])]


def _record(_: str, found: list[bytes | None]) -> Record | None:
    row, static = found
    return record_from(row, static) if row is not None and static is not None else None


def _group_reads(execution_id: str) -> list[Read]:
    return [("HGET", _execution(execution_id), FIELDS["group"])]


def _put_group(writing: Writing, args: Args) -> list[Any]:
    return ["group", writing.key, args.put(encode(pack_group(writing.value)[1]))]


def _edge(key: tuple[str, str], row: bytes) -> Edge:
    return edge_of(*key, row)


def _put_edge(writing: Writing, args: Args) -> list[Any]:
    return ["edge", *writing.key, args.put(encode(pack_edge(writing.value)[1]))]


def _blob_reads(key: tuple[str, str]) -> list[Read]:
    return [("HGET", _execution(key[0]), _BLOBS[key[1]])]


def _put_blob(writing: Writing, args: Args) -> list[Any]:
    return ["field", writing.key[0], _BLOBS[writing.key[1]], args.put(writing.value)]


def _put_attempt(writing: Writing, args: Args) -> list[Any]:
    execution_id, index = writing.key
    row = [getattr(writing.value, name) for name in ATTEMPT]
    return ["field", execution_id, f"{FIELDS['attempt']}{index}", args.put(encode(row))]


def _put_history(writing: Writing, args: Args) -> list[Any]:
    return ["history", writing.key[0], args.put(encode(pack_entry(writing.value)))]


def _put_fairness(writing: Writing, _: Args) -> list[Any]:
    _, namespace, lane, fairness_key = writing.key
    return ["fairness", namespace, f"{lane},{fairness_key}", writing.value]


def tables_of(
    tag: str, searchable: Searchable, flow_id: str = ""
) -> Callable[[Snapshot], StoredTables]:
    return lambda snapshot: StoredFlow(snapshot, tag, searchable, flow_id)
