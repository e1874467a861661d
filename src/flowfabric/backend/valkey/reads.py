"""Mechanisms `read`, `count` and `queues`."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from flowfabric.backend.reference.reads import HISTORY
from flowfabric.backend.types import (
    NO_DOCUMENTS,
    Named,
    Queue,
    Seen,
    With,
)
from flowfabric.backend.valkey import keys
from flowfabric.backend.valkey.calls import Read, side_by_side
from flowfabric.backend.valkey.fan_out import fetch, fetch_from_nodes, fetch_groups
from flowfabric.backend.valkey.graph_rows import edges_of, group_of, upstreams_of
from flowfabric.backend.valkey.packing import (
    attempt_from,
    decode,
    document_from,
    entries_of,
    record_from,
)
from flowfabric.backend.valkey.requests import ReadUpstreams
from flowfabric.backend.valkey.search import SearchMechanism
from flowfabric.core.documents import Document
from flowfabric.core.events import HistoryEntry, history_of
from flowfabric.core.graph import Edge, Group, Upstream
from flowfabric.core.record import Attempt, Record

# What lies in an execution's hash beside its record.
_FIELDS: Final[tuple[With, ...]] = ("input", "result", "group")
_ATTEMPTS: Final = frozenset[With]({"attempts", "history"})
_UPSTREAMS: Final = frozenset[With]({"upstreams", "upstream_results"})


class _Found(NamedTuple):
    """What one call has found of an execution."""

    record: Record
    # By what they hold.
    fields: dict[With, bytes]
    # Log entries that no attempt tells, packed.
    kept: list[bytes]
    incoming: tuple[Edge, ...]
    documents: dict[str, Document]

    @property
    def id(self) -> str:
        return self.record.execution_id

    @property
    def group(self) -> Group | None:
        row = self.fields.get("group")
        return group_of(self.id, decode(row)) if row else None

    @property
    def ended(self) -> list[str]:
        """Fields of the attempts that have ended; the open one is in the record."""
        open_index = self.record.attempt.index if self.record.attempt else -1
        indices = range(self.record.attempt_count)
        return [f"{keys.FIELDS['attempt']}{index}" for index in indices if index != open_index]


class ReadMechanism(SearchMechanism):
    async def read(
        self, ids: Sequence[str], include: frozenset[With], documents: Named = NO_DOCUMENTS
    ) -> list[Seen | None]:
        asked = [(own, documents.get(own, ())) for own in ids]
        # Decisions rely on a record and documents of the same moment.
        groups = [_reads(own, include, names) for own, names in asked]
        fetched = await fetch_groups(self._calls, groups)
        replies = iter(fetched.checked())
        rows = [_found(replies, include, names) for _, names in asked]
        found = [row for row in rows if row is not None]
        ended = await self._ended(found) if include & _ATTEMPTS else {}
        results = "upstream_results" in include
        upstreams = await self._upstreams(found, results) if include & _UPSTREAMS else {}
        return [
            Seen(
                record=row.record,
                now=fetched.now,
                input=row.fields.get("input"),
                result=row.fields.get("result"),
                attempts=_attempts(row, ended) if "attempts" in include else (),
                history=_history(row, ended) if "history" in include else (),
                documents=row.documents,
                upstreams=upstreams.get(row.id, ()),
                group=row.group,
                incoming=row.incoming,
            )
            if row is not None
            else None
            for row in rows
        ]

    async def _ended(self, found: Sequence[_Found]) -> dict[str, list[Attempt]]:
        """Attempts that have ended, by execution. They do not change any more, so they are still
        what they were when the record was read."""
        had = [row for row in found if row.ended]
        reads = [("HMGET", keys.stored_key("execution", row.id), *row.ended) for row in had]
        fetched = await fetch(self._calls, reads)
        return {
            row.id: [attempt_from(body) for body in bodies if body is not None]
            for row, bodies in zip(had, fetched.checked(), strict=True)
        }

    async def _upstreams(
        self, found: Sequence[_Found], results: bool
    ) -> dict[str, tuple[Upstream, ...]]:
        async def read(row: _Found) -> tuple[Upstream, ...]:
            request = ReadUpstreams(row.id, results)
            reply = await self._calls.run(
                "upstreams", keys.execution_partition_key(row.id), request
            )
            return upstreams_of(reply.head, reply.bodies)

        pages = await side_by_side(read, found)
        return {row.id: page for row, page in zip(found, pages, strict=True)}

    async def count(self, namespace: str, lane: str) -> dict[str, int]:
        index = self._calls.index_partitions(range(self._calls.counts.flow))
        tags = map(keys.partition_tag, index)
        reads = [("HGETALL", keys.stored_key("counters", tag, namespace)) for tag in tags]
        fetched = await fetch_from_nodes(self._calls, reads)
        found: Counter[str] = Counter()
        for flat in fetched.checked():
            for field, count in zip(flat[::2], flat[1::2], strict=True):
                own, _, state = field.decode().partition(",")
                if lane in ("", own):
                    found[state] += int(count)
        return {state: count for state, count in found.items() if count}

    async def queues(self, namespace: str, lane: str) -> list[Queue]:
        """What waits in a lane, per queue."""
        found: dict[str, _Depth] = {}
        for name, depth in await self._depths(namespace, lane):
            known = found.get(name)
            found[name] = depth if known is None else known.joined(depth)
        names = sorted(found)
        firsts = await self.records([found[name].first for name in names])
        return [
            Queue(name, found[name].size, found[name].rank, first.kind if first else "")
            for name, first in zip(names, firsts, strict=True)
        ]

    async def _depths(self, namespace: str, lane: str) -> list[tuple[str, "_Depth"]]:
        """How much of each queue waits in each partition."""
        reads: list[Read] = []
        queued = await self.lane_queues(namespace, lane)
        for tag, name in queued:
            key = keys.stored_key("view", tag, keys.queue_view(name, namespace, lane))
            reads += (("ZCARD", key), ("ZRANGE", key, "0", "0", "WITHSCORES"))
        replies = (await fetch_from_nodes(self._calls, reads)).checked()
        return [
            (name, _Depth(int(float(first[1])), first[0].decode(), size))
            for (_, name), size, first in zip(queued, replies[::2], replies[1::2], strict=True)
            if first
        ]


class _Depth(NamedTuple):
    """The rank and id of the first record of a queue, and how many there are."""

    rank: int
    first: str
    size: int

    def joined(self, other: "_Depth") -> "_Depth":
        return min(self, other)._replace(size=self.size + other.size)


def _reads(own: str, include: frozenset[With], names: Collection[str]) -> list[Read]:
    fields = (keys.FIELDS[name] for name in _FIELDS if name in include)
    execution = keys.stored_key("execution", own)
    reads: list[Read] = [
        ("HMGET", execution, keys.FIELDS["record"], keys.FIELDS["static"], *fields)
    ]
    if "history" in include:
        reads.append(("LRANGE", keys.stored_key("history", own), "0", "-1"))
    if "group" in include:
        reads.append(("incoming", own))
    if names:
        key = keys.stored_key("documents", own)
        has_pattern = any(name.endswith("*") for name in names)
        reads.append(("HGETALL", key) if has_pattern else ("HMGET", key, *names))
    return reads


def _found(
    replies: Iterator[Any], include: frozenset[With], names: Collection[str]
) -> _Found | None:
    """The replies to `_reads`; None when there is no such execution."""
    row, static, *fields = next(replies)
    kept = next(replies) if "history" in include else []
    incoming = next(replies) if "group" in include else []
    documents = _documents(next(replies), names) if names else {}
    if row is None:
        return None
    record = record_from(row, static)
    named = zip((name for name in _FIELDS if name in include), fields, strict=True)
    return _Found(
        record,
        {name: body for name, body in named if body is not None},
        kept,
        tuple(edges_of(record.flow_id, incoming)),
        documents,
    )


def _documents(reply: list[Any], names: Collection[str]) -> dict[str, Document]:
    """The documents with these names, or with names that begin with one that ends in `*`."""
    prefixes = tuple(name[:-1] for name in names if name.endswith("*"))
    if not prefixes:
        pairs = zip(names, reply, strict=True)
        return {name: document_from(body) for name, body in pairs if body is not None}
    stored = zip((name.decode() for name in reply[::2]), reply[1::2], strict=True)
    return {
        name: document_from(body)
        for name, body in sorted(stored)
        if name in names or name.startswith(prefixes)
    }


def _attempts(row: _Found, ended: dict[str, list[Attempt]]) -> tuple[Attempt, ...]:
    """All of them by index."""
    last = (row.record.attempt,) if row.record.attempt else ()
    return (*ended.get(row.id, ()), *last)


def _history(row: _Found, ended: dict[str, list[Attempt]]) -> tuple[HistoryEntry, ...]:
    logged = (entry for one in row.kept for entry in entries_of(decode(one)))
    return tuple(history_of(row.record, ended.get(row.id, ()), logged)[-HISTORY:])
