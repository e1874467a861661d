"""Checks of what only this store has: sorted sets, counters and hints, against the records."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from flowfabric.backend.reference.memory_tables import MemoryTables
from flowfabric.backend.reference.tables import EDGES, FLOWS, RECORDS
from flowfabric.backend.reference.verification.records import rows_of
from flowfabric.backend.types import Discrepancy
from flowfabric.backend.valkey.calls import Calls
from flowfabric.backend.valkey.graph_rows import EdgeLists, has_more, ids_of, lists_of
from flowfabric.backend.valkey.keys import (
    CHILD_RANGES,
    FLOW_RANGES,
    OF_PARTITIONS,
    partition_key,
    state_view,
    tag_of,
    tag_view,
)
from flowfabric.backend.valkey.verifying.dumping import Dump, parted, scores
from flowfabric.core.ids import UUID_LENGTH, partition_of
from flowfabric.core.record import Record
from flowfabric.core.retention import flow_purge_at
from flowfabric.core.views import Entry, bucket_of, entries, is_offered, tag_entries

# Views of budgets.
_OTHERS: Final = frozenset({"budget_timers"})

# By the rest of a sorted set's name, its members with their scores.
Sets = defaultdict[str, dict[str, int]]
# By the rest of a key's name, the lists of edges there.
Lists = dict[str, EdgeLists]


class Places:
    """Where records, flows and edges must stand, by the rest of a key's name."""

    def __init__(self, calls: Calls, dumped: Dump, tables: MemoryTables) -> None:
        self._calls = calls
        self.records = [record for _, record in rows_of(tables, RECORDS)]
        views: Sets = defaultdict(dict)
        for record in self.records:
            self._expect(views, record)
        _expect_flows(views, dumped, tables)
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
    yield from _check_queues(calls, dumped, places)
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
    match entry.view:
        case "flow":
            return FLOW_RANGES[str(entry.key[1])] + first
        case "children":
            return CHILD_RANGES[int(entry.key[1])] + first
        case _:
            return first


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
        case "children":
            return f"children:{key[0]}"
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


def listed_queues(places: Places) -> Sets:
    """The queues that have work, by the rest of the key that lists them."""
    listed: Sets = defaultdict(dict)
    for (lane, queue, tag), rank in places.queues().items():
        listed[f"{tag}:{lane[3:-1]}"][queue] = rank
    return listed


def found_queues(dumped: Dump) -> dict[str, dict[str, int]]:
    """As they are listed, but for what hints say."""
    return {
        name: scores(pairs)
        for name, pairs in dumped.get("lq", {}).items()
        if not name.startswith("{l:")
    }


def hinted_queues(places: Places) -> dict[tuple[str, str], int]:
    """The best rank of each queue of a lane over all partitions."""
    best: dict[tuple[str, str], int] = {}
    for (lane, queue, _), rank in places.queues().items():
        best[lane, queue] = min(best.get((lane, queue), rank), rank)
    return best


def _check_queues(calls: Calls, dumped: Dump, places: Places) -> Iterator[Discrepancy]:
    """Every queue is listed by its best rank. In a cluster it is also hinted at, by a rank that
    none in it is below."""
    yield from _differences("queue", found_queues(dumped), listed_queues(places))
    if not calls.topology.is_cluster:
        return
    for (lane, queue, tag), rank in places.queues().items():
        hint = scores(dumped.get("r", {}).get(f"{lane}:{queue}", ())).get(tag)
        if hint is None or hint > rank:
            yield Discrepancy("hint", f"{lane} {queue} {tag}", str(hint), f"at most {rank}")
    for (lane, queue), rank in hinted_queues(places).items():
        hint = scores(dumped.get("lq", {}).get(lane, ())).get(queue)
        if hint is None or hint > rank:
            yield Discrepancy("hint", f"{lane} {queue}", str(hint), f"at most {rank}")


def _check_timers(dumped: Dump, places: Places) -> Iterator[Discrepancy]:
    hints = scores(dumped.get("t", {}).get("{cfg}", ()))
    for name, first in places.timers().items():
        hint = hints.get(_tag(name))
        if hint is None or hint > first:
            yield Discrepancy("timer hint", name, str(hint), f"at most {first}")


# ---- flows and edges


def _expect_flows(expected: Sets, dumped: Dump, tables: MemoryTables) -> None:
    for rest in dumped.get("f", {}):
        tag, flow_id = parted(rest)
        flow = tables.get(FLOWS, flow_id)
        if flow is None:
            continue
        places = {
            "flows_by_age": flow.created_at,
            "flow_timers": flow.due_at,
            "flow_purge": flow_purge_at(flow),
        }
        for view, score in places.items():
            if score:
                expected[f"{tag}:{view}"][flow_id] = score
        if flow.partition >= 0:
            expected[f"{tag}:flows"][flow_id] = 0


def edge_lists(dumped: Dump, tables: MemoryTables) -> Lists:
    """The lists of edges that each flow must have."""
    expected: Lists = {}
    for rest, fields in dumped.get("e", {}).items():
        _, flow_id = parted(rest)
        found = (tables.get(EDGES, (flow_id, edge_id.decode())) for edge_id in fields)
        lists = lists_of([edge for edge in found if edge is not None])
        if lists:
            expected[rest] = lists
    return expected


def listed_edges(lists: Lists) -> dict[str, Counter[str]]:
    """How often each edge is to be found by each list."""
    return {
        rest: Counter(f"{name} {edge_id}" for name, ids in own.items() for edge_id in ids)
        for rest, own in lists.items()
    }


def found_edges(dumped: Dump) -> dict[str, Counter[str]]:
    """How often each edge is found by each list; what no reader would come upon counts apart."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for rest, fields in dumped.get("el", {}).items():
        for name, text in fields.items():
            ids = ids_of(text)
            found[rest].update(f"{name.decode()} {edge_id}" for edge_id in ids)
            if ids != sorted(ids):
                found[rest][f"{name.decode()} out of order"] += 1
    for rest, pairs in dumped.get("em", {}).items():
        lists = dumped.get("el", {}).get(rest, {})
        for entry in (member.decode() for member, _ in pairs):
            name, edge_id = entry[:-UUID_LENGTH], entry[-UUID_LENGTH:]
            is_read = has_more(lists.get(name.encode(), b""))
            found[rest][f"{name} {edge_id}" if is_read else f"{entry} hidden"] += 1
    return found
