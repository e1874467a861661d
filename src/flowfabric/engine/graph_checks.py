"""Whether a submitted graph is one: names, arrows, policies, and no way round in a circle."""

from collections.abc import Container, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from flowfabric.core.edge_policies import EdgePolicy, read_edge_policy
from flowfabric.core.flow_checks import find_cycle
from flowfabric.core.ids import check_text
from flowfabric.engine.edges import data_ref, edge_kind
from flowfabric.errors import (
    CycleDetected,
    DependencyAlreadyExists,
    InvalidInput,
    SelfReferencingEdge,
)
from flowfabric.operations.flows import GraphEdge, GraphGroup, GraphNode, GraphSubmission

MOST_NODES: Final = 100_000
MOST_EDGES: Final = 1_000_000
_NAME_BYTES: Final = 1024
_SHOWN: Final = 20


def check_graph(asked: GraphSubmission) -> dict[str, EdgePolicy]:
    """The policies of the nodes that have inbound edges; anything wrong is refused."""
    names = _check_nodes(asked.nodes)
    _check_edges(asked.edges, names)
    pairs = [(edge.source, edge.target) for edge in asked.edges]
    cycle = find_cycle([node.name for node in asked.nodes], pairs)
    if cycle:
        shown = " -> ".join([*cycle[:_SHOWN], "..." if len(cycle) > _SHOWN else cycle[0]])
        raise CycleDetected(shown, cycle=cycle)
    policies = dict.fromkeys((edge.target for edge in asked.edges), EdgePolicy("all_of"))
    return policies | _check_groups(asked.groups, names, policies.keys())


def digest_of(asked: GraphSubmission) -> str:
    """What tells one graph from another under the same key: its shape, not its payloads."""
    shape = (
        [(node.name, node.lane, node.kind, node.execution_id) for node in asked.nodes],
        [
            (edge.source, edge.target, edge.edge_id, edge.dependency_kind, edge.data_passing_ref)
            for edge in asked.edges
        ],
        [(group.target, read_edge_policy(group.policy)) for group in asked.groups],
    )
    return sha256(msgspec.json.encode(shape)).hexdigest()[:32]


def _check_nodes(nodes: Sequence[GraphNode]) -> set[str]:
    if not nodes:
        raise InvalidInput("nodes: a graph has at least one")
    if len(nodes) > MOST_NODES:
        raise InvalidInput(f"nodes: at most {MOST_NODES}, got {len(nodes)}")
    names: set[str] = set()
    for node in nodes:
        check_text(node.name, "nodes: name", _NAME_BYTES, allow_empty=False, allow_control=False)
        if node.name in names:
            raise InvalidInput(f"nodes: {node.name!r} is there twice")
        names.add(node.name)
    return names


def _check_edges(edges: Sequence[GraphEdge], names: set[str]) -> None:
    if len(edges) > MOST_EDGES:
        raise InvalidInput(f"edges: at most {MOST_EDGES}, got {len(edges)}")
    pairs: set[tuple[str, str]] = set()
    ids: set[str] = set()
    for edge in edges:
        for name in (edge.source, edge.target):
            if name not in names:
                raise InvalidInput(f"edges: there is no node {name!r}")
        if edge.source == edge.target:
            raise SelfReferencingEdge(f"{edge.source!r} cannot wait for itself")
        edge_kind(edge.dependency_kind)
        data_ref(edge.data_passing_ref)
        if (edge.source, edge.target) in pairs:
            raise DependencyAlreadyExists(f"two edges join {edge.source!r} and {edge.target!r}")
        if edge.edge_id and edge.edge_id in ids:
            raise DependencyAlreadyExists(f"two edges have the id {edge.edge_id}")
        pairs.add((edge.source, edge.target))
        ids.add(edge.edge_id)


def _check_groups(
    groups: Sequence[GraphGroup], names: set[str], targets: Container[str]
) -> dict[str, EdgePolicy]:
    policies: dict[str, EdgePolicy] = {}
    for group in groups:
        if group.target not in names:
            raise InvalidInput(f"groups: there is no node {group.target!r}")
        if group.target in policies:
            raise InvalidInput(f"groups: {group.target!r} has two policies")
        if group.target not in targets:
            raise InvalidInput(f"groups: nothing leads to {group.target!r}")
        policies[group.target] = read_edge_policy(group.policy)
    return policies
