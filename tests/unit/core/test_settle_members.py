"""Releases, skips, cancelled siblings, data passing, parking and replay, one small graph a time."""

from collections.abc import Sequence
from typing import Final

import msgspec
import pytest

from flowfabric.core import settle
from flowfabric.core.apply import apply
from flowfabric.core.graph import FINISHED, Edge, Group, OnSatisfied, reopen
from flowfabric.core.plan import Applied
from flowfabric.core.rules.attempts import Children, park
from flowfabric.core.rules.operators import cancel, set_tags
from flowfabric.core.rules.replay import Reopening, ReplayRequest, Scene, replay
from flowfabric.core.transition import Transition
from tests.unit.core.graphs import FLOW, Graph, Inbound, Outcome, edge_id, member
from tests.unit.core.records import NOW, changed
from tests.unit.core.rows import FakeRows

ROOT: Final = Inbound(())


def fan_in(
    sources: int, inbound: Inbound | None = None, *, data_ref: str = ""
) -> tuple[Graph, int]:
    """Some roots and one member that waits for them; also that member's number."""
    waiting = inbound or Inbound(tuple(range(sources)))
    return Graph((*[ROOT] * sources, waiting), data_ref), sources


def quorum(n: int, k: int, on_satisfied: OnSatisfied) -> tuple[Graph, int]:
    return fan_in(n, Inbound(tuple(range(n)), "quorum", k, on_satisfied))


def group_of(graph: Graph, number: int) -> Group:
    return graph.rows.groups[member(number)]


def test_a_diamond_is_released_when_both_sides_succeeded() -> None:
    graph = Graph((ROOT, Inbound((0,)), Inbound((0,)), Inbound((1, 2))))
    states = []
    for number in range(3):
        graph.end(number, "success")
        states.append([graph.state(i) for i in range(4)])
    assert states == [
        ["completed", "waiting", "waiting", "blocked"],
        ["completed", "completed", "waiting", "blocked"],
        ["completed", "completed", "completed", "waiting"],
    ]


@pytest.mark.parametrize("outcome", ["failed", "cancelled", "expired"])
def test_what_can_never_be_reached_is_skipped_and_so_is_all_behind_it(outcome: Outcome) -> None:
    graph = Graph((ROOT, ROOT, Inbound((0, 1)), Inbound((2,)), Inbound((3,))))
    graph.end(0, outcome)
    assert [graph.state(i) for i in range(5)] == [outcome, "waiting", *["skipped"] * 3]
    behind = group_of(graph, 3)
    assert (behind.failed, behind.skipped, behind.state) == (0, 1, "impossible")
    outcomes = [entry.details["outcome"] for entry in graph.rows.entries if entry.details]
    assert outcomes[-3:] == ["skipped"] * 3


@pytest.mark.parametrize("on_satisfied", ["cancel_remaining", "let_run"])
@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        (["success"] * 3, "satisfied"),
        (["success", "success", "failed", "failed"], "pending"),
        (["success", "success", "failed", "cancelled", "expired"], "impossible"),
        (["failed", "failed", "failed"], "impossible"),
        (["success", "failed", "success", "expired", "success"], "satisfied"),
    ],
)
def test_three_of_five(outcomes: list[Outcome], state: str, on_satisfied: OnSatisfied) -> None:
    graph, target = quorum(5, 3, on_satisfied)
    for number, outcome in enumerate(outcomes):
        graph.end(number, outcome)
    assert group_of(graph, target).state == state
    states = {"pending": "blocked", "satisfied": "waiting", "impossible": "skipped"}
    assert graph.state(target) == states[state]
    left = [graph.state(i) for i in range(len(outcomes), 5)]
    cut = state != "pending" and on_satisfied == "cancel_remaining"
    assert left == ["cancelled" if cut else "waiting"] * len(left)


def test_a_cut_ends_the_siblings_attempt_under_its_holder() -> None:
    graph, target = quorum(2, 1, "cancel_remaining")
    graph.claim(1)
    graph.end(0, "success")
    cut = graph.record(1)
    assert (cut.state, cut.cancelled_by) == ("cancelled", "sibling_cut")
    assert cut.cancellation_reason == "sibling_quorum_satisfied"
    assert (cut.lease_id, cut.attempt) == ("", None)
    (ended,) = [attempt for owner, attempt in graph.rows.ended if owner == member(1)]
    assert (ended.state, ended.closed_reason) == ("ended_cancelled", "attempt_cancelled")
    assert group_of(graph, target).cancel_reason == "sibling_quorum_satisfied"
    assert group_of(graph, target).failed == 1, "its own edge is counted like any other"


def test_a_sibling_somebody_else_still_needs_is_spared() -> None:
    graph = Graph(
        (
            *[ROOT] * 3,
            Inbound((0, 1), "any_of", 0, "cancel_remaining"),
            Inbound((1, 2), "any_of", 0, "cancel_remaining"),
        )
    )
    graph.end(0, "success")
    assert (graph.state(1), graph.state(3)) == ("waiting", "waiting")
    graph.end(2, "success")
    assert graph.state(1) == "cancelled"


def test_after_a_group_fired_outcomes_only_move_its_counters() -> None:
    graph, target = quorum(4, 1, "let_run")
    graph.end(0, "success")
    fired_at = group_of(graph, target).fired_at
    graph.end(1, "success")
    graph.end(2, "failed")
    graph.end(3, "cancelled")
    group = group_of(graph, target)
    assert (group.succeeded, group.failed, group.skipped) == (2, 2, 0)
    assert (group.state, group.fired_at, graph.state(target)) == ("satisfied", fired_at, "waiting")


def test_a_delay_that_still_lies_ahead_goes_on_after_the_release() -> None:
    for wake_at, state in ((NOW + 10_000, "delayed"), (NOW + 1, "waiting"), (0, "waiting")):
        graph, target = fan_in(1)
        graph.rows.records[member(target)] = changed(graph.record(target), wake_at=wake_at)
        graph.end(0, "success")
        released = graph.record(target)
        assert (released.state, released.next) == (state, "first")
        assert released.reason == ("delay" if state == "delayed" else "")
        assert released.wake_at == (wake_at if state == "delayed" else 0)


def test_members_ended_by_the_flows_own_cancel_settle_no_edges() -> None:
    graph, target = fan_in(1)
    answer = apply(graph.rows, cancel(member(0), "why", "flow_cascade", None))
    assert isinstance(answer, Applied)
    assert (graph.state(0), graph.state(target)) == ("cancelled", "blocked")
    assert graph.rows.edges[edge_id(0, target)].state == "open"


# ---- staged edges


def _stage(graph: Graph, source: int, target: int) -> None:
    staged = Edge(
        edge_id=edge_id(source, target) + "-staged",
        flow_id=FLOW,
        source=member(source),
        target=member(target),
    )
    graph.rows.put_edge(staged)
    group = group_of(graph, target)
    graph.rows.put_group(msgspec.structs.replace(group, staged=group.staged + 1))


def test_all_of_waits_for_an_edge_that_is_only_staged() -> None:
    graph = Graph((ROOT, ROOT, Inbound((0,))))
    _stage(graph, 1, 2)
    graph.end(0, "success")
    assert (graph.state(2), group_of(graph, 2).state) == ("blocked", "pending")


def test_a_staged_edge_is_not_settled_by_its_sources_end() -> None:
    graph = Graph((ROOT, ROOT, Inbound((0,), "any_of", 0, "let_run")))
    _stage(graph, 1, 2)
    graph.end(1, "failed")
    assert (graph.state(2), group_of(graph, 2).failed) == ("blocked", 0)
    graph.end(0, "success")
    assert graph.state(2) == "waiting", "enough successes are enough, staged edges or not"


# ---- data passing


def test_the_result_of_the_upstream_becomes_the_input() -> None:
    graph, target = fan_in(1, data_ref="input")
    graph.rows.put_blobs(member(target), {"input": b"original"})
    graph.end(0, "success")
    assert graph.rows.blobs[member(target), "input"] == b"result of 0"


@pytest.mark.parametrize("data_ref", ["", "report"])
def test_nothing_is_copied_under_another_name(data_ref: str) -> None:
    graph, target = fan_in(1, data_ref=data_ref)
    graph.rows.put_blobs(member(target), {"input": b"original"})
    graph.end(0, "success")
    assert graph.rows.blobs[member(target), "input"] == b"original"


def test_a_late_success_does_not_change_the_input_of_what_runs_already() -> None:
    waiting = Inbound((0, 1), "any_of", 0, "let_run")
    graph, target = fan_in(2, waiting, data_ref="input")
    graph.end(1, "success")
    graph.end(0, "success")
    assert graph.rows.blobs[member(target), "input"] == b"result of 1"


def test_the_bytes_copied_in_one_step_are_bounded_too() -> None:
    graph = Graph((ROOT, *[Inbound((0,))] * 5), data_ref="input")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settle, "BYTES_PER_STEP", len(b"result of 0") * 2)
        assert graph.end(0, "success")
        released = [graph.state(i) for i in range(1, 6)]
        assert released == ["waiting"] * 2 + ["blocked"] * 3
        graph.settle()
    assert [graph.state(i) for i in range(1, 6)] == ["waiting"] * 5


# ---- parking


def _park(graph: Graph, number: int, children: tuple[int, ...] | None) -> str:
    fence = graph.claim(number)
    named = None
    if children is not None:
        ids = tuple((f"park-{child}", member(child)) for child in children)
        named = Children(FLOW, ids, graph.rows.group(member(number)))
    answer = apply(graph.rows, park(member(number), fence, named, "op"))
    assert isinstance(answer, Applied)
    assert answer.brief.state == graph.state(number)
    return answer.brief.state


def test_a_parent_goes_on_when_all_children_ended_however_they_ended() -> None:
    graph = Graph((ROOT,) * 4)
    assert _park(graph, 0, (1, 2, 3)) == "blocked"
    ends: list[tuple[int, Outcome]] = [(1, "failed"), (2, "success"), (3, "cancelled")]
    for child, outcome in ends:
        assert graph.state(0) == "blocked"
        graph.end(child, outcome)
    parent, group = graph.record(0), group_of(graph, 0)
    assert (parent.state, parent.next) == ("waiting", "resume")
    assert (group.round, group.n, group.succeeded, group.state) == (1, 3, 3, "satisfied")
    assert all(edge.kind == FINISHED for edge in graph.rows.edges.values())


@pytest.mark.parametrize("children", [None, (1, 2)])
def test_a_parent_with_nothing_left_to_wait_for_is_released_at_once(
    children: tuple[int, ...] | None,
) -> None:
    graph = Graph((ROOT,) * 3)
    graph.end(1, "failed")
    graph.end(2, "success")
    assert _park(graph, 0, children) == "waiting"
    assert graph.record(0).next == "resume"


def test_each_parking_counts_its_own_children_only() -> None:
    graph = Graph((ROOT, Inbound((0,)), ROOT, ROOT))
    graph.end(0, "success")
    _park(graph, 1, (2,))
    graph.end(2, "success")
    assert _park(graph, 1, (3,)) == "blocked"
    group = group_of(graph, 1)
    assert (group.round, group.n, group.succeeded) == (2, 1, 0)
    graph.end(3, "expired")
    assert graph.state(1) == "waiting"


def test_an_outcome_of_an_earlier_round_does_not_count_in_the_next() -> None:
    graph = Graph((ROOT, ROOT, Inbound((0, 1), "any_of", 0, "let_run"), ROOT))
    graph.end(0, "success")
    _park(graph, 2, (3,))
    graph.end(1, "failed")
    assert graph.rows.edges[edge_id(1, 2)].state == "impossible"
    group = group_of(graph, 2)
    assert (group.round, group.succeeded, group.failed) == (1, 0, 0)
    assert graph.state(2) == "blocked"
    graph.end(3, "success")
    assert graph.state(2) == "waiting"


def test_a_write_that_does_not_move_a_parked_parent_does_not_release_it() -> None:
    graph = Graph((ROOT, ROOT))
    _park(graph, 0, (1,))
    apply(graph.rows, set_tags(graph.record(0), {"app.team": "red"}))
    assert graph.state(0) == "blocked"


# ---- the bound


class _Touched(FakeRows):
    """Counts what a step writes."""

    def __init__(self, rows: FakeRows) -> None:
        vars(self).update(vars(rows))
        self.touched = 0

    def put_edge(self, edge: Edge) -> None:
        self.touched += 1
        super().put_edge(edge)

    def put_group(self, group: Group) -> None:
        self.touched += 1
        super().put_group(group)

    def write(self, transition: Transition) -> None:
        self.touched += 1
        super().write(transition)


def _fan(width: int, on_satisfied: OnSatisfied) -> Graph:
    """One that feeds many that feed one, which takes the first of them."""
    middle = tuple(range(1, width + 1))
    return Graph((ROOT, *[Inbound((0,))] * width, Inbound(middle, "any_of", 1, on_satisfied)))


@pytest.mark.parametrize("outcome", ["success", "failed"])
def test_no_step_of_a_wide_flow_touches_more_than_its_bound(outcome: Outcome) -> None:
    width = 20 * settle.EDGES_PER_STEP
    graph = _fan(width, "cancel_remaining")
    graph.rows = rows = _Touched(graph.rows)
    graph.end(0, outcome)
    if outcome == "success":
        graph.settle()
        rows.touched = 0
        graph.end(1, "success")
    steps = 0
    more = True
    while more:
        # An edge, the group that counts it, the member that moves for it; and what began it all.
        assert rows.touched <= 3 * settle.EDGES_PER_STEP + 3
        rows.touched = 0
        more = settle.continue_flow(rows, graph.flow())
        steps += 1
    assert steps > 20
    ended = {"skipped"} if outcome == "failed" else {"cancelled"}
    assert {graph.state(number) for number in range(2, width + 1)} == ended


class _Looked(FakeRows):
    """Counts the edges a step looks at."""

    def __init__(self, rows: FakeRows) -> None:
        vars(self).update(vars(rows))
        self.looked = 0

    def outgoing(self, source: str, after: str, limit: int) -> Sequence[Edge]:
        found = super().outgoing(source, after, limit)
        self.looked += len(found)
        return found


def test_a_wide_source_that_comes_last_needs_no_look_while_nothing_has_ended() -> None:
    graph = _fan(20 * settle.EDGES_PER_STEP, "cancel_remaining")
    rows = _Looked(graph.rows)
    assert not settle.cancel_late_siblings(rows, FLOW, [member(0)])
    assert rows.looked == 0


# ---- replay


def _replay(graph: Graph, number: int) -> str:
    record = graph.record(number)
    group = graph.rows.group(record.execution_id)
    reopened = None
    if record.state == "skipped" and group is not None:
        incoming = graph.rows.incoming(record.execution_id, "", 100)
        reopened = Reopening(reopen(group, incoming, {}), 1)
    answer = apply(
        graph.rows, replay(record, ReplayRequest(), Scene(graph.rows.now, reopened=reopened))
    )
    assert isinstance(answer, Applied)
    return answer.brief.state


def test_a_replayed_member_does_not_reopen_what_it_decided_before() -> None:
    graph, target = fan_in(1)
    graph.end(0, "failed")
    assert _replay(graph, 0) == "waiting"
    assert graph.state(target) == "skipped"
    graph.end(0, "success")
    assert (graph.state(target), group_of(graph, target).state) == ("skipped", "impossible")


def test_a_skipped_member_waits_for_its_failed_upstream_to_be_replayed() -> None:
    graph, target = fan_in(2)
    graph.end(0, "success")
    graph.end(1, "failed")
    assert graph.state(target) == "skipped"
    assert _replay(graph, target) == "blocked"
    group = group_of(graph, target)
    assert (group.succeeded, group.failed, group.state) == (1, 0, "pending")
    assert graph.rows.edges[edge_id(1, target)].state == "open", "it failed: that is no success"
    assert _replay(graph, 1) == "waiting"
    graph.end(1, "success")
    assert (graph.state(target), graph.record(target).next) == ("waiting", "replay")


def test_a_skipped_member_whose_upstream_succeeded_meanwhile_is_released_at_once() -> None:
    graph, target = fan_in(1)
    graph.end(0, "failed")
    _replay(graph, 0)
    graph.end(0, "success")
    assert _replay(graph, target) == "waiting"
    assert group_of(graph, target).state == "satisfied"


def test_a_replay_opens_a_finished_flow_again() -> None:
    graph = Graph((ROOT,))
    graph.end(0, "failed")
    assert graph.flow().finished_at
    _replay(graph, 0)
    assert (graph.flow().finished_at, graph.flow().purge_at) == (0, 0)
    assert graph.flow().counts == {"waiting": 1}
    graph.end(0, "success")
    assert graph.flow().finished_at
    assert [entry.kind for entry in graph.rows.entries].count("finished") == 2
