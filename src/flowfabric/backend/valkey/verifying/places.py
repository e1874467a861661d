"""Checks of what only this store has: sorted sets, counters and hints, against the records."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from flowfabric.backend.reference.memory_tables import MemoryTables
from flowfabric.backend.reference.tables import RECORDS
from flowfabric.backend.reference.verification.walking import rows_of
from flowfabric.backend.types import Discrepancy
from flowfabric.backend.valkey.calls import Calls
from flowfabric.backend.valkey.keys import (
    FLOW_RANGES,
    OF_PARTITIONS,
    partition_key,
    state_view,
    tag_of,
    tag_view,
)
from flowfabric.backend.valkey.verifying.dumping import Dump, scores
from flowfabric.backend.valkey.verifying.graphs import (
    edge_lists,
    flow_views,
    found_edges,
    listed_edges,
)
from flowfabric.core.ids import partition_of
from flowfabric.core.record import Record
from flowfabric.core.views import Entry, bucket_of, entries, is_offered, tag_entries

# Views of budgets.
_OTHERS: Final = frozenset({"budget_timers"})

# By the rest of a sorted set's name, its members with their scores.
Sets = defaultdict[str, dict[str, int]]


class Places:
    """Where records, flows and edges must stand, by the rest of a key's name."""

    def __init__(self, calls: Calls, dumped: Dump, tables: MemoryTables) -> None:
        self._calls = calls
        self.records = [record for _, record in rows_of(tables, RECORDS)]
        views: Sets = defaultdict(dict)
        for record in self.records:
            self._expect(views, record)
        views.update(flow_views(dumped, tables))
        self.views: Mapping[str, dict[str, int]] = views
        self.lists = edge_lists(dumped, tables)
        self.counters: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for record in self.records:
            name = f"{self._index_tag_of(record)}:{record.namespace}"
            self.counters[name][f"{record.lane},{bucket_of(record)}"] += 1

    def _index_tag_of(self, record: Record) -> str:
        (partition,) = self._calls.index_partitions([partition_of(record.execution_id)])
        return tag_of(partition_key(partition))

    def _expect(self, expected: Sets, record: Record) -> None:
        own, index_tag = _tag(record.execution_id), self._index_tag_of(record)
        is_queued = record.state == "waiting" and is_offered(record)
        for entry in (*entries(record), *tag_entries(record, self._calls.searchable)):
            # What waits stands in its lane's queues, which are in the lane's own order.
            if entry.view != "by_state" or not is_queued:
                tag = own if entry.view in OF_PARTITIONS else index_tag
                expected[f"{tag}:{_name(entry)}"][record.execution_id] = _score(entry)

    def found(self, dumped: Dump) -> dict[str, dict[str, int]]:
        """The views as they are, but those of budgets."""
        return {
            name: scores(pairs)
            for name, pairs in dumped.get("v", {}).items()
            if name[len(_tag(name)) + 1 :] not in _OTHERS
        }

    def queues(self) -> dict[tuple[str, str, str], int]:
        """The best rank of each queue, by lane, requirement set and index tag."""
        best: dict[tuple[str, str, str], int] = {}
        for record in self.records:
            if is_offered(record):
                lane = f"{{l:{record.namespace}:{record.lane}}}"
                place = (lane, record.req_set, self._index_tag_of(record))
                best[place] = min(best.get(place, record.rank), record.rank)
        return best

    def sets(self) -> set[tuple[str, str, str]]:
        """The requirement sets of each lane's records: any of them may be queued again."""
        return {(one.namespace, one.lane, one.req_set) for one in self.records}

    def timers(self) -> dict[str, int]:
        """The first instant of each partition's timers, by the view that has it."""
        timers = ((name, due) for name, due in self.views.items() if name.endswith("timers"))
        return {name: min(due.values()) for name, due in timers}


def check_places(calls: Calls, dumped: Dump, tables: MemoryTables) -> Iterator[Discrepancy]:
    places = Places(calls, dumped, tables)
    yield from _differences("view", places.found(dumped), places.views)
    yield from _differences("edge list", found_edges(dumped), listed_edges(places.lists))
    found = {name: counts_of(counts) for name, counts in dumped.get("c", {}).items()}
    yield from _differences("count", found, places.counters)
    yield from _check_queues(dumped, places)
    yield from _check_timers(dumped, places)


def counts_of(fields: Mapping[bytes, bytes]) -> dict[str, int]:
    return {
        field.decode(): int(n) if n.lstrip(b"-").isdigit() else 0 for field, n in fields.items()
    }


def _tag(name: str) -> str:
    """Of an execution, or of a key's name."""
    return name[: name.index("}") + 1]


def _score(entry: Entry) -> int:
    first = int(entry.order[0]) if len(entry.order) > 1 else 0
    return FLOW_RANGES[str(entry.key[1])] + first if entry.view == "flow" else first


def _name(entry: Entry) -> str:
    key = [str(part) for part in entry.key]
    match entry.view:
        case "claimable":
            namespace, lane, req_set = key
            return f"claimable:{req_set}:{namespace}:{lane}"
        case "by_state":
            namespace, lane, bucket = key
            return state_view(bucket, namespace, lane)
        case "tag":
            return tag_view(*key)
        case "all" | "partition":
            return entry.view
        case "flow":
            return f"flow:{key[0]}"
        case _:
            return ":".join((entry.view, *key))


def _differences(
    kind: str, found: Mapping[str, Mapping[str, int]], expected: Mapping[str, Mapping[str, int]]
) -> Iterator[Discrepancy]:
    for name in sorted(found.keys() | expected.keys()):
        ours, theirs = found.get(name, {}), expected.get(name, {})
        for member in sorted(ours.keys() | theirs.keys()):
            if ours.get(member) != theirs.get(member):
                is_and_should = str(ours.get(member)), str(theirs.get(member))
                yield Discrepancy(kind, f"{name} {member}", *is_and_should)


def _check_queues(dumped: Dump, places: Places) -> Iterator[Discrepancy]:
    """Every queue is hinted at, by a rank that none in it is below."""
    for (lane, req_set, tag), rank in places.queues().items():
        hint = scores(dumped.get("r", {}).get(f"{lane}:{req_set}", ())).get(tag)
        if hint is None or hint > rank:
            yield Discrepancy("hint", f"{lane} {req_set} {tag}", str(hint), f"at most {rank}")
        if req_set.encode() not in dumped.get("rs", {}).get(lane, ()):
            yield Discrepancy("set", f"{lane} {req_set}", "nothing", "listed")


def _check_timers(dumped: Dump, places: Places) -> Iterator[Discrepancy]:
    hints = scores(dumped.get("t", {}).get("{cfg}", ()))
    for name, first in places.timers().items():
        hint = hints.get(_tag(name))
        if hint is None or hint > first:
            yield Discrepancy("timer hint", name, str(hint), f"at most {first}")
