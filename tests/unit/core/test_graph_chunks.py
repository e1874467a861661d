"""Large graphs in chunks: all of it arrives once, and nothing can start too early."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.graph_chunks import CHUNK, ONE_STEP, Size, WholeGraph, chunks_of
from flowfabric.core.new_execution import NewExecution, NewGraph
from flowfabric.core.record import Record

MEMBER = Record(execution_id="", namespace="team", lane="main")
FLOW = Flow(flow_id="flow-1", namespace="team")
NO_STEP = Size(0, 0, 0)


def graph(members: int, edges: list[tuple[int, int]], size: int = 0) -> WholeGraph:
    executions = tuple(
        NewExecution(execution_id=f"m{i}", record=MEMBER, input=b"x" * size) for i in range(members)
    )
    inbound: dict[str, list[Edge]] = {}
    for source, target in edges:
        edge = Edge(
            edge_id=f"{source}-{target}", flow_id="flow-1", source=f"m{source}", target=f"m{target}"
        )
        inbound.setdefault(f"m{target}", []).append(edge)
    groups = {
        target: Group(target=target, flow_id="flow-1", n=len(found))
        for target, found in inbound.items()
    }
    return WholeGraph(FLOW, executions, inbound, groups)


def ids(chunk: NewGraph) -> list[str]:
    return [one.execution_id for one in chunk.members]


@st.composite
def dags(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    members = draw(st.integers(1, 12))
    pairs = [(s, t) for t in range(members) for s in range(t)]
    return members, draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []


@given(dags(), st.integers(1, 4), st.integers(1, 4))
def test_chunks_bring_everything_once_and_what_has_no_edges_last(
    dag: tuple[int, list[tuple[int, int]]], members: int, edges: int
) -> None:
    whole = graph(*dag)
    limit = Size(members, edges, 1_000)
    chunks = list(chunks_of(whole, NO_STEP, limit))
    arrived = [one for chunk in chunks for one in ids(chunk)]
    assert sorted(arrived) == sorted(one.execution_id for one in whole.members)
    sent = [edge for chunk in chunks for edge in chunk.edges]
    assert sorted(edge.edge_id for edge in sent) == sorted(f"{s}-{t}" for s, t in dag[1])
    roots = [one for one in arrived if one not in whole.inbound]
    assert arrived[-len(roots) :] == roots
    assert [chunk.is_last for chunk in chunks] == [*[False] * (len(chunks) - 1), True]
    assert all(chunk.flow.incomplete for chunk in chunks)
    for chunk in chunks:
        assert len(chunk.members) <= members
        assert len(chunk.edges) <= edges


@given(dags(), st.integers(1, 3))
def test_edges_come_after_their_target_and_before_anybody_may_start(
    dag: tuple[int, list[tuple[int, int]]], edges: int
) -> None:
    chunks = list(chunks_of(graph(*dag), NO_STEP, Size(2, edges, 1_000)))
    groups: dict[str, Group] = {}
    there: set[str] = set()
    roots_came = False
    for chunk in chunks:
        for group in chunk.groups:
            groups[group.target] = group
        there.update(ids(chunk))
        for edge in chunk.edges:
            assert edge.target in there
            assert not roots_came or edge.target in ids(chunk)
        roots_came = roots_came or any(one not in groups for one in ids(chunk))
    for target, group in groups.items():
        assert group.n + group.staged == sum(f"m{t}" == target for _, t in dag[1])
        assert group.n >= 1


def test_the_edges_of_a_wide_fan_in_go_on_in_chunks_of_their_own() -> None:
    whole = graph(8, [(i, 7) for i in range(7)])
    chunks = list(chunks_of(whole, NO_STEP, Size(3, 2, 1_000)))
    assert [(ids(chunk), len(chunk.edges)) for chunk in chunks] == [
        (["m7"], 2),
        ([], 2),
        ([], 2),
        ([], 1),
        (["m0", "m1", "m2"], 0),
        (["m3", "m4", "m5"], 0),
        (["m6"], 0),
    ]
    (group,) = chunks[0].groups
    assert (group.n, group.staged) == (2, 5)


@pytest.mark.parametrize(
    ("limit", "fits"),
    [
        (Size(3, 2, 30), True),
        (Size(2, 2, 30), False),
        (Size(3, 1, 30), False),
        (Size(3, 2, 29), False),
    ],
)
def test_a_graph_within_every_limit_is_one_step(limit: Size, fits: bool) -> None:
    whole = graph(3, list(pairwise(range(3))), size=10)
    chunks = list(chunks_of(whole, limit, Size(1, 1, 1)))
    assert (len(chunks) == 1) == fits
    if fits:
        (chunk,) = chunks
        assert (len(chunk.members), len(chunk.edges), len(chunk.groups)) == (3, 2, 2)
        assert chunk.is_last
        assert not chunk.flow.incomplete


def test_a_member_larger_than_a_chunk_still_travels() -> None:
    chunks = list(chunks_of(graph(2, [], size=100), NO_STEP, Size(5, 5, 10)))
    assert [ids(chunk) for chunk in chunks] == [["m0"], ["m1"]]


def test_chunks_are_smaller_than_what_one_step_may_do() -> None:
    for name in msgspec.structs.asdict(CHUNK):
        assert getattr(CHUNK, name) < getattr(ONE_STEP, name)
