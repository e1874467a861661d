"""Graphs by names: cycles found and refused, members put in order."""

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.flow_checks import MOST_NODES, CycleSearch, find_cycle, in_order
from flowfabric.errors import CycleDetected, GraphTooLargeForCycleCheck

Edges = list[tuple[int, int]]

SIZE = 8
edges_of_some_graph = st.lists(
    st.tuples(st.integers(0, SIZE - 1), st.integers(0, SIZE - 1)).filter(lambda e: e[0] != e[1]),
    unique=True,
    max_size=20,
)


def reachable(edges: Edges, start: int) -> set[int]:
    found, frontier = {start}, [start]
    while frontier:
        node = frontier.pop()
        for source, target in edges:
            if source == node and target not in found:
                found.add(target)
                frontier.append(target)
    return found


def is_cyclic(edges: Edges) -> bool:
    return any(source in reachable(edges, target) for source, target in edges)


def search(edges: Iterable[tuple[object, object]], upstream: object, downstream: object) -> None:
    """Run a search to its end, the way an engine feeds it."""
    known = [(str(source), str(target)) for source, target in edges]
    one = CycleSearch(str(upstream), str(downstream))
    while one.frontier:
        one.feed(t for node in one.frontier for s, t in known if s == node)


# ---- one edge


@given(edges_of_some_graph, st.integers(0, SIZE - 1), st.integers(0, SIZE - 1))
def test_an_edge_is_refused_exactly_if_it_would_close_a_cycle(
    edges: Edges, upstream: int, downstream: int
) -> None:
    if upstream == downstream:
        return
    if upstream in reachable(edges, downstream):
        with pytest.raises(CycleDetected):
            search(edges, upstream, downstream)
    else:
        search(edges, upstream, downstream)


def test_a_search_ends_in_a_graph_that_already_has_a_cycle() -> None:
    search([("b", "c"), ("c", "b")], "a", "b")


def chain(length: int) -> list[tuple[str, str]]:
    return list(pairwise(f"n{i:04}" for i in range(length)))


def test_the_search_visits_a_thousand_members_and_no_more() -> None:
    search(chain(MOST_NODES), "x", "n0000")
    with pytest.raises(GraphTooLargeForCycleCheck):
        search(chain(MOST_NODES + 1), "x", "n0000")


def test_a_cycle_within_reach_is_found_before_the_graph_is_too_large() -> None:
    edges = [("a", "x"), *(("a", f"t{i}") for i in range(2 * MOST_NODES))]
    with pytest.raises(CycleDetected):
        search(edges, "x", "a")


def test_members_reached_twice_count_once() -> None:
    targets = [f"t{i}" for i in range(MOST_NODES - 2)]
    edges = [(middle, target) for middle in ("a", "b") for target in targets]
    with pytest.raises(GraphTooLargeForCycleCheck):
        search([("s", "a"), ("s", "b"), *edges], "x", "s")
    search(
        [("s", "a"), ("a", "b"), *edges[: len(targets) - 1], *edges[len(targets) : -1]], "x", "s"
    )


# ---- whole graphs


@given(edges_of_some_graph)
def test_a_cycle_is_found_exactly_if_there_is_one(edges: Edges) -> None:
    cycle = find_cycle(range(SIZE), edges)
    assert bool(cycle) == is_cyclic(edges)
    for step in zip(cycle, [*cycle[1:], *cycle[:1]], strict=True):
        assert step in edges
    assert len(set(cycle)) == len(cycle)


@given(edges_of_some_graph)
def test_in_order_everything_comes_behind_what_it_depends_on(edges: Edges) -> None:
    ordered = in_order(range(SIZE), edges)
    place = {node: number for number, node in enumerate(ordered)}
    assert len(place) == len(ordered)
    for source, target in edges:
        if target in place:
            assert place[source] < place[target]
    cyclic = {source for source, target in edges if source in reachable(edges, target)}
    behind = {node for start in cyclic for node in reachable(edges, start)}
    assert set(ordered) == set(range(SIZE)) - behind


def test_without_edges_the_order_is_the_one_given() -> None:
    assert in_order(["c", "a", "b"], []) == ["c", "a", "b"]


def test_edges_to_strangers_do_not_count() -> None:
    assert in_order(["b", "a"], [("x", "b"), ("a", "y"), ("a", "b")]) == ["a", "b"]


def test_a_long_chain_needs_no_deep_stack() -> None:
    edges = chain(50_000)
    nodes = [source for source, _ in edges] + [edges[-1][1]]
    assert find_cycle(nodes, edges) == []
    assert len(find_cycle(nodes, [*edges, (nodes[-1], nodes[0])])) == len(nodes)
