"""The graphs that are measured: a chain, a fan out and in, a race."""

from collections.abc import Sequence
from itertools import pairwise

from bench.cycle import INPUT
from flowfabric.operations.flows import GraphEdge, GraphGroup, GraphNode, GraphSubmission

LENGTH = 10
RACERS = 20
FIRST_WINS = {"kind": "any_of", "on_satisfied": "cancel_remaining"}


def graph(names: Sequence[str], edges: Sequence[tuple[str, str]], lane: str) -> GraphSubmission:
    return GraphSubmission(
        nodes=tuple(GraphNode(name=name, lane=lane, kind="bench", input=INPUT) for name in names),
        edges=tuple(GraphEdge(source=source, target=target) for source, target in edges),
    )


def chain(lane: str) -> GraphSubmission:
    names = [f"n{i}" for i in range(LENGTH)]
    return graph(names, list(pairwise(names)), lane)


def fan(width: int, lane: str) -> GraphSubmission:
    middle = [f"m{i}" for i in range(width)]
    edges = [("top", name) for name in middle] + [(name, "end") for name in middle]
    return graph(["top", *middle, "end"], edges, lane)


def race(lane: str) -> GraphSubmission:
    racers = [f"r{i}" for i in range(RACERS)]
    plain = graph([*racers, "end"], [(name, "end") for name in racers], lane)
    return GraphSubmission(
        nodes=plain.nodes, edges=plain.edges, groups=(GraphGroup("end", FIRST_WINS),)
    )
