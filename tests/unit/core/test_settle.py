"""What the end of a member does to the graph behind it, against a second opinion."""

from collections import Counter
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core import settle
from flowfabric.core.graph import GroupPolicy, OnSatisfied, live_members
from flowfabric.core.states import FINAL
from tests.unit.core.graphs import Graph, Inbound, Judge, Outcome, Shape, member

_POLICIES: Final[tuple[GroupPolicy, ...]] = ("all_of", "any_of", "quorum")
_CUTS: Final[tuple[OnSatisfied, ...]] = ("cancel_remaining", "let_run")
_OUTCOMES: Final[tuple[Outcome, ...]] = ("success", "success", "failed", "cancelled", "expired")


@st.composite
def inbounds(draw: st.DrawFn, number: int) -> Inbound:
    choices = st.lists(st.integers(0, number - 1), unique=True, max_size=6)
    sources = tuple(sorted(draw(choices))) if number else ()
    policy = draw(st.sampled_from(_POLICIES))
    if not sources or policy == "all_of":
        return Inbound(sources)
    k = draw(st.integers(1, len(sources) + 1)) if policy == "quorum" else 0
    return Inbound(sources, policy, k, draw(st.sampled_from(_CUTS)))


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    size = draw(st.integers(2, 12))
    return tuple(draw(inbounds(number)) for number in range(size))


def assert_agrees(graph: Graph, judge: Judge) -> None:
    numbers = range(len(graph.shape))
    assert [graph.state(i) for i in numbers] == [judge.state(i) for i in numbers]
    for edge in graph.rows.edges.values():
        source = next(i for i in numbers if member(i) == edge.source)
        assert edge.state == judge.edge_state(source)
        assert bool(edge.resolved_at) == (edge.state != "open")
    for target in numbers:
        if graph.shape[target].sources:
            group = graph.rows.groups[member(target)]
            expected = judge.group(target)
            assert {name: getattr(group, name) for name in expected} == expected
            assert bool(group.fired_at) == (group.state != "pending")
    for number, reasons in judge.reasons.items():
        assert graph.record(number).cancellation_reason in reasons
        assert graph.record(number).cancelled_by == "sibling_cut"
    flow = graph.flow()
    assert flow.counts == judge.counts()
    assert bool(flow.finished_at) == (live_members(flow) == 0)
    assert_told_once(graph)


def assert_told_once(graph: Graph) -> None:
    """Every end is one completion; the end of the flow is told when it comes."""
    ends = Counter(
        entry.execution_id for entry in graph.rows.entries if "completion" in entry.families
    )
    ended = {i for i in range(len(graph.shape)) if graph.state(i) in FINAL}
    assert ends == Counter(member(i) for i in ended)
    finished = [entry for entry in graph.rows.entries if entry.kind == "finished"]
    assert len(finished) == (1 if len(ended) == len(graph.shape) else 0)


def assert_settled(graph: Graph) -> None:
    """Nothing is left over, and no timer asks for more."""
    flow = graph.flow()
    assert (flow.unsettled, flow.due_at) == ((), 0)


def next_to_end(data: st.DataObject, graph: Graph) -> tuple[int, Outcome]:
    number = data.draw(st.sampled_from(graph.live()))
    possible = _OUTCOMES if graph.state(number) == "waiting" else ("cancelled", "expired")
    return number, data.draw(st.sampled_from(possible))


@given(shapes(), st.data())
def test_a_graph_stands_as_its_edges_and_policies_define(shape: Shape, data: st.DataObject) -> None:
    graph, judge = Graph(shape), Judge(shape)
    assert_agrees(graph, judge)
    while graph.live():
        number, outcome = next_to_end(data, graph)
        assert not graph.end(number, outcome)
        judge.end(number, outcome)
        assert_agrees(graph, judge)
        assert_settled(graph)


@given(shapes(), st.data(), st.integers(1, 4), st.integers(1, 4))
def test_a_cascade_in_small_steps_comes_to_the_same_end(
    shape: Shape, data: st.DataObject, edges: int, page: int
) -> None:
    graph, judge = Graph(shape), Judge(shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settle, "EDGES_PER_STEP", edges)
        patch.setattr(settle, "PAGE", page)
        while graph.live():
            number, outcome = next_to_end(data, graph)
            more = graph.end(number, outcome)
            assert more == bool(graph.flow().unsettled)
            assert bool(graph.flow().due_at) == more, "the flow's timer takes over if we die here"
            if more:
                graph.settle()
            judge.end(number, outcome)
            assert_agrees(graph, judge)
            assert_settled(graph)


@given(shapes(), st.data())
def test_a_cascade_overtaken_by_other_ends_is_late_but_never_wrong(
    shape: Shape, data: st.DataObject
) -> None:
    graph = Graph(shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settle, "EDGES_PER_STEP", 1)
        while graph.live():
            graph.end(*next_to_end(data, graph))
            if data.draw(st.booleans()):
                settle.continue_flow(graph.rows, graph.flow())
        graph.settle()
    assert_settled(graph)
    judge = Judge(shape)
    judge.outcomes = {
        i: str(graph.rows.records[member(i)].state).replace("completed", "success")
        for i in range(len(shape))
    }
    for edge in graph.rows.edges.values():
        source = next(i for i in range(len(shape)) if member(i) == edge.source)
        assert edge.state == judge.edge_state(source)
    for target, inbound in enumerate(shape):
        if inbound.sources:
            group = graph.rows.groups[member(target)]
            counted = judge.group(target)
            assert [group.succeeded, group.failed, group.skipped] == [
                counted[name] for name in ("succeeded", "failed", "skipped")
            ]
            assert group.state != "pending"
    assert_told_once(graph)
