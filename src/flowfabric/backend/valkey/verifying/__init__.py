"""Mechanisms `verify` and `repair`: everything a server holds is read, and what is derived is
computed once more.

Rows are judged by the reference's own checks; what only this store has (sorted sets, counters,
hints) is compared with what those rows say. It reads the whole store into memory: a check for
tests, and for times when nothing else runs.
"""

from itertools import chain
from typing import Final

from flowfabric.backend.reference.memory_tables import MemoryTables
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.verification.graph import check_graph
from flowfabric.backend.reference.verification.limits import check_limits
from flowfabric.backend.reference.verification.records import check_records, check_rows
from flowfabric.backend.types import Discrepancy
from flowfabric.backend.valkey.calls import Calls
from flowfabric.backend.valkey.node import Word
from flowfabric.backend.valkey.verifying.dumping import ALIEN, Dump, dump
from flowfabric.backend.valkey.verifying.limits import read_limits
from flowfabric.backend.valkey.verifying.places import (
    Places,
    check_places,
    counts_of,
    found_edges,
    found_queues,
    hinted_queues,
    listed_edges,
    listed_queues,
)
from flowfabric.backend.valkey.verifying.rows import Rows, rows_from

__all__ = ["repair", "verify"]


async def verify(calls: Calls, now: int) -> list[Discrepancy]:
    dumped, rows, tables = await _read(calls, now)
    tx = Transaction(tables, now, calls.searchable)
    return [
        *rows.faults,
        *check_records(tx),
        *check_graph(tx),
        *check_rows(tx),
        *check_limits(tx),
        *check_places(calls, dumped, tables),
    ]


async def repair(calls: Calls, now: int) -> None:
    """Write once more what follows from records: views, lists of edges, counters and hints.
    Records, flows, groups, limits and logs stay as they are; `verify` reports what is wrong with
    those. What changes meanwhile would be lost from the views."""
    dumped, _, tables = await _read(calls, now)
    await _Repair(calls, dumped, tables).run()


async def _read(calls: Calls, now: int) -> tuple[Dump, Rows, MemoryTables]:
    await calls.settled()
    dumped = await dump(calls.topology)
    rows = rows_from(dumped, now)
    read_limits(rows, dumped)
    tables = MemoryTables(calls.searchable)
    tables.write(rows.changes())
    return dumped, rows, tables


# Kinds of keys that are nothing but derived.
_DERIVED: Final = frozenset({"v", "el", "em", "c", "r", "lq", "t", "hq", "rq", "tq"})
_PAIRS_AT_ONCE: Final = 1_000


class _Repair:
    def __init__(self, calls: Calls, dumped: Dump, tables: MemoryTables) -> None:
        self._calls = calls
        self._dumped = dumped
        self._places = Places(calls, dumped, tables)

    async def run(self) -> None:
        for key, kind in self._dumped.get(ALIEN, {}).items():
            if kind in _DERIVED:
                await self._send("DEL", key)
        await self._write_views()
        await self._write_edge_lists()
        await self._write_counters()
        await self._write_queues()
        await self._write_hints()

    async def _write_views(self) -> None:
        found, expected = self._places.found(self._dumped), self._places.views
        for name in found.keys() | expected.keys():
            members = expected.get(name, {})
            if found.get(name, {}) != members:
                await self._send("DEL", f"ff:v:{name}")
                await self._put("ZADD", f"ff:v:{name}", [(s, m) for m, s in members.items()])

    async def _write_queues(self) -> None:
        found, expected = found_queues(self._dumped), listed_queues(self._places)
        for name in found.keys() | expected.keys():
            members = expected.get(name, {})
            if found.get(name, {}) != members:
                await self._send("DEL", f"ff:lq:{name}")
                await self._put("ZADD", f"ff:lq:{name}", [(s, m) for m, s in members.items()])

    async def _write_edge_lists(self) -> None:
        found, expected = found_edges(self._dumped), listed_edges(self._places.lists)
        for name in found.keys() | expected.keys():
            if found.get(name) != expected.get(name):
                await self._send("DEL", f"ff:el:{name}")
                await self._send("DEL", f"ff:em:{name}")
                lists = self._places.lists.get(name, {})
                texts: list[tuple[Word, Word]] = [(one, "".join(ids)) for one, ids in lists.items()]
                await self._put("HSET", f"ff:el:{name}", texts)

    async def _write_counters(self) -> None:
        found = {name: counts_of(fields) for name, fields in self._dumped.get("c", {}).items()}
        for name in found.keys() | self._places.counters.keys():
            counts = dict(self._places.counters.get(name, {}))
            if found.get(name, {}) != counts:
                await self._send("DEL", f"ff:c:{name}")
                await self._put("HSET", f"ff:c:{name}", list(counts.items()))

    async def _write_hints(self) -> None:
        """Lower bounds: those that are there already may stay."""
        if self._calls.topology.is_cluster:
            for (lane, queue, tag), rank in self._places.queues().items():
                await self._send("ZADD", f"ff:r:{lane}:{queue}", "LT", rank, tag)
            for (lane, queue), rank in hinted_queues(self._places).items():
                await self._send("ZADD", f"ff:lq:{lane}", "LT", rank, queue)
        for name, first in self._places.timers().items():
            tag = name[: name.index("}") + 1]
            await self._send("ZADD", "ff:t:{cfg}", "LT", first, tag)

    async def _put(self, command: str, key: str, pairs: list[tuple[Word, Word]]) -> None:
        for start in range(0, len(pairs), _PAIRS_AT_ONCE):
            await self._send(
                command, key, *chain.from_iterable(pairs[start : start + _PAIRS_AT_ONCE])
            )

    async def _send(self, command: str, key: str, *words: Word) -> None:
        await self._calls.topology.node_of(key).command(command, key, *words)
