"""Flows, edges and groups as they lie in a store, and the lists they must be found in."""

from collections.abc import Iterator
from typing import Any

from flowfabric.backend.reference.memory_tables import MemoryTables
from flowfabric.backend.reference.tables import EDGES, FLOWS
from flowfabric.backend.valkey.graph_rows import edge_of, flow_of, group_of
from flowfabric.backend.valkey.packing import decode
from flowfabric.backend.valkey.verifying.dumping import Dump
from flowfabric.core.graph import Edge, Flow, Group, edge_key

# By the rest of a sorted set's name, its members with their scores.
Sets = dict[str, dict[str, int]]


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
        edge = edge_of(flow_id, (edge_id.decode(), decode(value)))
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
        places = {"flows_by_age": flow.created_at, "flow_timers": flow.due_at}
        if flow.purged_count >= flow.node_count:
            places["flow_purge"] = flow.purge_at
        for view, score in places.items():
            if score:
                expected.setdefault(f"{tag}:{view}", {})[flow_id] = score
        if flow.partition >= 0:
            expected.setdefault(f"{tag}:flows", {})[flow_id] = 0
    return expected


def edge_lists(dumped: Dump, tables: MemoryTables) -> dict[str, Sets]:
    """The lists of edges: of each flow, of those that leave a member, of those that reach it."""
    expected: dict[str, Sets] = {"el": {}, "eo": {}, "ei": {}}
    for rest, fields in dumped.get("e", {}).items():
        _, flow_id = _parted(rest)
        for edge_id in (name.decode() for name in fields):
            edge: Any = tables.get(EDGES, (flow_id, edge_id))
            if edge is None:
                continue
            for kind, name in (("el", rest), ("eo", edge.source), ("ei", edge.target)):
                expected[kind].setdefault(name, {})[edge_id] = 0
    return expected
