"""Vectors about flows, groups and edges."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from flowfabric.backend.valkey.graph_rows import (
    FLOW,
    flow_of,
    group_of,
    pack_edge,
    pack_flow,
    pack_group,
)
from flowfabric.core import (
    apply,
    checks,
    events,
    graph,
    members,
    retention,
    states,
    transition,
)
from flowfabric.errors import FlowFabricError
from tests.golden.case import FEW, MANY, SOME, Case, Counted, Make, read_log, row
from tests.golden.inputs import NOW, Inputs
from tests.stores import SEARCHABLE

_replace = msgspec.structs.replace


# ---- flows

_FLOW_TAG: Final = "{fp:1}"


class _OneFlow:
    """The rows a change of one flow needs."""

    now = NOW

    def __init__(self, flow: graph.Flow) -> None:
        self.stored = flow
        self.entries: list[events.LogEntry] = []

    def flow(self, _: str) -> graph.Flow:
        return self.stored

    def put_flow(self, flow: graph.Flow) -> None:
        self.stored = flow

    def log(self, entry: events.LogEntry) -> None:
        self.entries.append(entry)

    def members_in(self, *_: object) -> list[Any]:
        return []

    def incoming(self, *_: object) -> list[Any]:
        return []

    def tied_children(self, *_: object) -> list[Any]:
        return []

    def expect(self, members: list[str]) -> None:
        assert members == []


def _flow_case(
    probe: str, answer: Callable[[graph.Flow], Any], read: Callable[[Any], Any] = lambda one: one
) -> Make:
    def make(draw: Inputs) -> Case:
        flow = draw.flow()
        given = [_FLOW_TAG, flow.flow_id, pack_flow(flow, SEARCHABLE)]
        return Case(probe, given, lambda: answer(flow), read)

    return make


def _flow_given(flow: graph.Flow, *more: Any) -> list[Any]:
    return [_FLOW_TAG, flow.flow_id, pack_flow(flow, SEARCHABLE), *more]


def _public_state(draw: Inputs) -> Case:
    state, reason = draw.one(sorted(states.STATES)), draw.one((*sorted(states.BLOCK_REASONS), ""))
    return Case(
        "public_state",
        [state, reason],
        lambda: len(FLOW) + 1 + states.PUBLIC_STATES.index(states.public_state(state, reason)),
    )


def _kept(flow: graph.Flow) -> graph.Flow:
    return members.keep_flow(_OneFlow(flow), flow)  # type: ignore[arg-type]


def _keep_flow(draw: Inputs) -> Case:
    flow = draw.flow()
    given = _flow_given(flow)
    return Case("keep_flow", given, lambda: _kept(flow), lambda row: flow_of(flow.flow_id, row))


def _grown(draw: Inputs) -> Case:
    flow, nodes, edges = draw.flow(), draw.one((0, 1, 4)), draw.one((0, 2))
    return Case(
        "grown",
        _flow_given(flow, nodes, edges),
        lambda: graph.grown(flow, members=nodes, edges=edges),
        lambda row: flow_of(flow.flow_id, row),
    )


def _move_member(draw: Inputs) -> Case:
    flow = draw.flow()
    after = _replace(draw.record(), flow_id=flow.flow_id)
    before = _replace(draw.record(), flow_id=draw.one((flow.flow_id, flow.flow_id, "")))
    first = before if draw.chance(0.8) else None
    if first is not None and first.flow_id:
        # Whoever leaves a state was counted in it.
        left = states.PUBLIC_STATES[draw.one(range(4))]
        flow = _replace(flow, counts={**dict.fromkeys(states.PUBLIC_STATES, 2), left: 1})

    def expect() -> graph.Flow:
        rows = _OneFlow(flow)
        members.move_member(rows, transition.Transition(first, after))  # type: ignore[arg-type]
        return rows.stored

    given = _flow_given(flow, row(first) if first else False, row(after))
    return Case("move_member", given, expect, lambda row: flow_of(flow.flow_id, row))


def _finish_flow(draw: Inputs) -> Case:
    flow = draw.flow()
    flow = _replace(flow, tags=draw.one(({}, {"app.case": "7"})))

    def expect() -> tuple[Any, ...]:
        rows = _OneFlow(flow)
        members.finish_flow(rows, flow.flow_id)  # type: ignore[arg-type]
        return rows.stored, rows.entries

    def read(answer: Any) -> tuple[Any, ...]:
        return flow_of(flow.flow_id, answer[0]), read_log(answer[1])

    return Case("finish_flow", _flow_given(flow), expect, read)


def _go_on_with(draw: Inputs) -> Case:
    """The flow's members are gone."""
    flow = draw.flow()

    def expect() -> tuple[Any, ...]:
        rows = _OneFlow(flow)
        more = apply.go_on_with(rows, flow)  # type: ignore[arg-type]
        return rows.stored, more

    def read(answer: Any) -> tuple[Any, ...]:
        return flow_of(flow.flow_id, answer[0]), answer[1]

    return Case("go_on_with", _flow_given(flow), expect, read)


def _explain_create(draw: Inputs) -> Case:
    flow = draw.flow()
    one = _replace(draw.record(), flow_id=flow.flow_id)
    return Case(
        "explain_create",
        _flow_given(flow, row(one)),
        lambda: checks.explain_create(one, flow) is None,
    )


def _is_cancelled_by_flow(draw: Inputs) -> Case:
    flow = draw.flow()
    one = _replace(draw.record(), flow_id=flow.flow_id)
    return Case(
        "is_cancelled_by_flow",
        _flow_given(flow, row(one)),
        lambda: graph.is_cancelled_by_flow(flow, one.state),
    )


# ---- groups and edges


def _judge(draw: Inputs) -> Case:
    group = draw.group()
    return Case("judge", [pack_group(group)[1]], lambda: graph.judge(group))


def _resolved_edges(draw: Inputs) -> Case:
    group = draw.group()
    return Case("resolved_edges", [pack_group(group)[1]], lambda: graph.resolved_edges(group))


def _resolve_edge(draw: Inputs) -> Case:
    edge, outcome = draw.edge(), draw.outcome()
    return Case(
        "resolve_edge",
        [pack_edge(edge)[1], outcome],
        lambda: graph.resolve_edge(edge, outcome, NOW).state == "satisfied",
    )


def _count_outcome(draw: Inputs) -> Case:
    group, outcome = draw.group(), draw.outcome()
    edge = draw.edge()
    satisfied = outcome == "success" or edge.kind == "finished"
    resolved = _replace(edge, state="satisfied" if satisfied else "impossible")

    def expect() -> Any:
        try:
            return graph.count_outcome(group, resolved, outcome)
        except FlowFabricError as fault:
            return type(fault), fault.detail

    def read(answer: Any) -> Any:
        if answer[0] == "overfull":
            fault = graph.overfull(*answer[1:])
            return type(fault), fault.detail
        return group_of(group.target, answer)

    given = [pack_group(group)[1], pack_edge(edge)[1], outcome, group.target]
    return Case("count_outcome", given, expect, read)


def _end_counts(draw: Inputs) -> Case:
    edge, source = draw.edge(), draw.record()
    given = [pack_edge(edge)[1], row(source)]
    return Case("end_counts", given, lambda: graph.end_counts(edge, source))


MAKES: Final[tuple[Counted, ...]] = (
    (_public_state, SOME),
    (_flow_case("live_members", graph.live_members), FEW),
    (_flow_case("states_to_cancel", lambda flow: list(graph.states_to_cancel(flow))), FEW),
    (_flow_case("members_to_cancel", graph.members_to_cancel), SOME),
    (_flow_case("has_work", graph.has_work), FEW),
    (_flow_case("flow_due_at", lambda flow: graph.flow_due_at(flow, NOW)), SOME),
    (_flow_case("is_over", graph.is_over), SOME),
    (_flow_case("flow_purge_at", retention.flow_purge_at), FEW),
    (_keep_flow, FEW),
    (_grown, FEW),
    (_move_member, SOME),
    (_finish_flow, SOME),
    (_go_on_with, SOME),
    (_explain_create, SOME),
    (_is_cancelled_by_flow, SOME),
    (_judge, MANY),
    (_resolved_edges, FEW),
    (_resolve_edge, FEW),
    (_count_outcome, SOME),
    (_end_counts, SOME),
)
