"""Flows, edges and groups as they lie in a store, and the lists they must be found in."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from flowfabric.backend.reference.memory_tables import MemoryTables
from flowfabric.backend.reference.tables import EDGES, FLOWS
from flowfabric.backend.valkey.graph_rows import (
    EdgeLists,
    edge_of,
    flow_of,
    group_of,
    has_more,
    ids_of,
    lists_of,
)
from flowfabric.backend.valkey.packing import decode
from flowfabric.backend.valkey.verifying.dumping import Dump
from flowfabric.core.graph import Edge, Flow, Group, edge_key
from flowfabric.core.ids import UUID_LENGTH
from flowfabric.core.retention import flow_purge_at

# By the rest of a sorted set's name, its members with their scores.
Sets = dict[str, dict[str, int]]
# By the rest of a key's name, the lists of edges there.
Lists = dict[str, EdgeLists]


def _parted(rest: str) -> tuple[str, str]:
    """The tag and the flow of a key."""
    tag, _, flow_id = rest.partition("}:")
    return f"{tag}}}", flow_id


def flow_row(rest: str, value: bytes) -> tuple[str, Flow]:
    _, flow_id = _parted(rest)
    return flow_id, flow_of(flow_id, decode(value))


def edge_rows(rest: str, fields: dict[bytes, bytes]) -> Iterator[tuple[tuple[str, str], Edge]]:
    _, flow_id = _parted(rest)
    for edge_id, value in fields.items():
        edge = edge_of(flow_id, edge_id.decode(), value)
        yield edge_key(edge), edge


def group_row(execution_id: str, value: bytes) -> tuple[str, Group]:
    return execution_id, group_of(execution_id, decode(value))


def flow_views(dumped: Dump, tables: MemoryTables) -> Sets:
    """Where the views of each partition must show its flows."""
    expected: Sets = {}
    for rest in dumped.get("f", {}):
        tag, flow_id = _parted(rest)
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
                expected.setdefault(f"{tag}:{view}", {})[flow_id] = score
        if flow.partition >= 0:
            expected.setdefault(f"{tag}:flows", {})[flow_id] = 0
    return expected


def edge_lists(dumped: Dump, tables: MemoryTables) -> Lists:
    """The lists of edges that each flow must have."""
    expected: Lists = {}
    for rest, fields in dumped.get("e", {}).items():
        _, flow_id = _parted(rest)
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
