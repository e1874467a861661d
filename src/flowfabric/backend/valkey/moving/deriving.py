"""What follows from rows: views, lists of edges, hints, counters, and when short-lived frames go.

Rows come a page at a time, so that a store of any size fits; only the counters of lanes are kept
until all have come.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from flowfabric.backend.moving import Page
from flowfabric.backend.reference import tables
from flowfabric.backend.reference.memory_tables import MemoryTables
from flowfabric.backend.reference.moving import Row
from flowfabric.backend.reference.tables import Changes, Put
from flowfabric.backend.valkey.calls import Calls
from flowfabric.backend.valkey.keys import (
    CONFIG,
    partition_tag,
    stored_key,
    tag_of,
)
from flowfabric.backend.valkey.moving.loading import Command, Sending
from flowfabric.backend.valkey.streams import MODES
from flowfabric.backend.valkey.verifying.dumping import Dump
from flowfabric.backend.valkey.verifying.places import Places, hinted_queues, listed_queues

_PAIRS_AT_ONCE: Final = 1_000


class Deriving:
    def __init__(self, calls: Calls, sending: Sending, *, is_test: bool) -> None:
        self._calls = calls
        self._sending = sending
        self._is_test = is_test
        self._counters: defaultdict[str, Counter[str]] = defaultdict(Counter)

    async def derive(self, page: Page) -> None:
        places = self._places(page.rows)
        for name, counts in places.counters.items():
            self._counters[name].update(counts)
        derived = _places(places, is_cluster=self._calls.topology.is_cluster)
        await self._sending.send_all(chain(derived, self._ends(page.rows)))
        if not page.cursor:
            await self._sending.send_all(self._counts())
            self._counters.clear()

    def _places(self, rows: Sequence[Row]) -> Places:
        held = MemoryTables(self._calls.searchable)
        puts: defaultdict[Any, list[Put]] = defaultdict(list)
        dumped: Dump = {"f": {}, "e": defaultdict(dict)}
        for table, key, value in rows:
            if table in (tables.RECORDS, tables.FLOWS, tables.EDGES):
                puts[table].append(Put(key, value))
            if table is tables.FLOWS:
                dumped["f"][f"{self._tag_of_flow(key)}:{key}"] = None
            elif table is tables.EDGES:
                dumped["e"][f"{self._tag_of_flow(key[0])}:{key[0]}"][key[1].encode()] = None
        held.write(Changes(puts, []))
        return Places(self._calls, dumped, held)

    def _tag_of_flow(self, flow_id: str) -> str:
        return partition_tag(self._calls.counts.of_flow(flow_id))

    def _ends(self, rows: Sequence[Row]) -> Iterator[Command]:
        """The server frees short-lived frames by itself, unless a test's clock says when."""
        for table, key, value in rows:
            if table is tables.STREAMS and value.expires_at and not self._is_test:
                name = stored_key("frames", f"{key[0]}:{key[1]}:{len(MODES)}")
                yield "PEXPIREAT", name, value.expires_at

    def _counts(self) -> Iterator[Command]:
        for name, counts in self._counters.items():
            yield "DEL", stored_key("counters", name)
            yield from _puts("HSET", stored_key("counters", name), counts.items())


def _places(places: Places, *, is_cluster: bool) -> Iterator[Command]:
    for name, members in places.views.items():
        ranked = ((score, member) for member, score in members.items())
        yield from _puts("ZADD", stored_key("view", name), ranked)
    for name, lists in places.lists.items():
        yield "DEL", stored_key("late_edges", name)
        yield from _puts("HSET", stored_key("edge_lists", name), _texts(lists).items())
    yield from _hints(places, is_cluster=is_cluster)


def _texts(lists: Mapping[str, list[str]]) -> dict[str, str]:
    return {name: "".join(ids) for name, ids in lists.items()}


def _hints(places: Places, *, is_cluster: bool) -> Iterator[Command]:
    for name, queues in listed_queues(places).items():
        for queue, rank in queues.items():
            yield "ZADD", stored_key("queues", name), "LT", rank, queue
    if is_cluster:
        for (lane, queue, tag), rank in places.queues().items():
            yield "ZADD", f"ff:r:{lane}:{queue}", "LT", rank, tag
        for (lane, queue), rank in hinted_queues(places).items():
            yield "ZADD", stored_key("queues", lane), "LT", rank, queue
    hints = stored_key("timer_hints", tag_of(CONFIG))
    for name, first in places.timers().items():
        yield "ZADD", hints, "LT", first, name[: name.index("}") + 1]


def _puts(
    command: str, key: str, pairs: Iterable[tuple[str | int, str | int]]
) -> Iterator[Command]:
    left = iter(pairs)
    while some := list(islice(left, _PAIRS_AT_ONCE)):
        yield command, key, *chain.from_iterable(some)
