"""Writing once more what follows from records: views, lists of edges, counters and hints.

Records, flows, groups, limits and logs are left as they are; what is wrong with those is told. Only
for times when nothing else runs: what changes meanwhile would be lost from the views.
"""

from itertools import chain
from typing import Final

from flowfabric.backend.reference.memory_tables import MemoryTables
from flowfabric.backend.valkey.calls import Calls
from flowfabric.backend.valkey.node import Word
from flowfabric.backend.valkey.verifying.dumping import ALIEN, Dump, run
from flowfabric.backend.valkey.verifying.graphs import found_edges, listed_edges
from flowfabric.backend.valkey.verifying.places import Places, counts_of

# Kinds of keys that are nothing but derived.
_DERIVED: Final = frozenset({"v", "el", "em", "c", "r", "rs", "t", "hq", "rq", "tq"})
_MANY: Final = 1_000


class Repair:
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
        await self._write_hints()

    async def _write_views(self) -> None:
        found, expected = self._places.found(self._dumped), self._places.views
        for name in found.keys() | expected.keys():
            members = expected.get(name, {})
            if found.get(name, {}) != members:
                await self._send("DEL", f"ff:v:{name}")
                await self._put("ZADD", f"ff:v:{name}", [(s, m) for m, s in members.items()])

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
        for (lane, req_set, tag), rank in self._places.queues().items():
            await self._send("ZADD", f"ff:r:{lane}:{req_set}", "LT", rank, tag)
        for namespace, lane, req_set in self._places.sets():
            await self._send("SADD", f"ff:rs:{{l:{namespace}:{lane}}}", req_set)
        for name, first in self._places.timers().items():
            tag = name[: name.index("}") + 1]
            await self._send("ZADD", "ff:t:{cfg}", "LT", first, tag)

    async def _put(self, command: str, key: str, pairs: list[tuple[Word, Word]]) -> None:
        for start in range(0, len(pairs), _MANY):
            await self._send(command, key, *chain.from_iterable(pairs[start : start + _MANY]))

    async def _send(self, command: str, key: str, *words: Word) -> None:
        await run(self._calls.topology.node_of(key), command, key, *words)
