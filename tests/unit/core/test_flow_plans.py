"""Flow plans: wholly or not at all, and what follows from each for flow, graph and members."""

from copy import deepcopy
from typing import Any, Final

import msgspec
import pytest

from flowfabric.core import flow_cancel, settle
from flowfabric.core.apply import apply
from flowfabric.core.edge_policies import EdgePolicy
from flowfabric.core.flow_apply import apply_flow
from flowfabric.core.flow_cancel import go_on_with
from flowfabric.core.flow_plan import (
    FlowApplied,
    FlowGuard,
    FlowPlan,
    FlowRefused,
    Require,
    check_flow_plan,
)
from flowfabric.core.graph import (
    Edge,
    Flow,
    GraphEdit,
    Group,
    Unsettled,
    flow_due_at,
    flow_state,
    has_work,
    is_abandoned,
    is_over,
    members_to_cancel,
)
from flowfabric.core.members import keep_flow
from flowfabric.core.plan import Applied, Guard, Plan
from flowfabric.core.record import Record
from flowfabric.core.rules.flows import (
    abandon,
    cancel_flow,
    combine,
    join,
    link,
    set_flow_tags,
    stage,
)
from flowfabric.core.rules.operators import cancel, set_tags
from flowfabric.core.states import FINAL
from flowfabric.errors import Corruption, InvariantViolation
from tests.unit.core.graphs import FLOW, Graph, Inbound, edge_id, member
from tests.unit.core.records import NOW, Situation, record_in
from tests.unit.core.rows import FakeRows

ROOT: Final = Inbound(())
STRANGER: Final = "{fp:101}:00000000-0000-4000-8000-00000000ffff"


def done(graph: Graph, plan: FlowPlan) -> FlowApplied:
    check_flow_plan(plan)
    answer = apply_flow(graph.rows, plan)
    assert isinstance(answer, FlowApplied)
    assert answer.flow == graph.flow()
    return answer


def refused(rows: FakeRows, plan: FlowPlan) -> Flow | None:
    """The plan is refused and changes nothing."""
    check_flow_plan(plan)
    before = deepcopy(rows.__dict__)
    answer = apply_flow(rows, plan)
    assert isinstance(answer, FlowRefused)
    assert rows.__dict__ == before
    return answer.flow


def standalone(**fields: Any) -> Record:
    return record_in("waiting", execution_id=STRANGER, **fields)


def new_edge(source: int, target: int, **fields: Any) -> Edge:
    values = {"edge_id": edge_id(source, target), "flow_id": FLOW} | fields
    return Edge(source=member(source), target=member(target), **values)


# ---- guards


def test_a_missing_flow_is_refused_unless_the_plan_brings_it_along() -> None:
    rows = FakeRows(NOW, standalone())
    plan = join(FLOW, standalone())
    assert refused(rows, plan) is None
    header = Flow(flow_id=FLOW, namespace="team", kind="children")
    answer = apply_flow(rows, msgspec.structs.replace(plan, create=header))
    assert isinstance(answer, FlowApplied)
    assert (answer.flow.kind, answer.flow.created_at) == ("children", NOW)
    assert (answer.flow.node_count, answer.flow.counts) == (1, {"waiting": 1})
    assert rows.records[STRANGER].flow_id == FLOW


@pytest.mark.parametrize(
    ("change", "guard"),
    [
        ({"cancelled_at": NOW}, FlowGuard()),
        ({"graph_revision": 3}, FlowGuard(graph_revision=2)),
        ({"graph_revision": 3}, FlowGuard(graph_revision=0)),
        ({"version": 9}, FlowGuard(version=8)),
    ],
)
def test_a_flow_that_is_not_as_expected_refuses_the_plan(
    change: dict[str, int], guard: FlowGuard
) -> None:
    graph = Graph((ROOT,))
    graph.rows.put_flow(msgspec.structs.replace(graph.flow(), **change))
    plan = FlowPlan(flow_id=FLOW, rule="tag", guard=guard, tags={"app.team": "red"})
    assert refused(graph.rows, plan) == graph.flow()


@pytest.mark.parametrize(
    "guard", [Guard(frozenset({"active"})), Guard(frozenset({"waiting"}), version=1)]
)
def test_a_member_that_is_not_as_expected_refuses_the_whole_plan(guard: Guard) -> None:
    graph = Graph((ROOT, ROOT))
    counted_on = FlowPlan(flow_id=FLOW, rule="stage", requires=(Require(member(1), guard),))
    refused(graph.rows, counted_on)
    missing = FlowPlan(flow_id=FLOW, rule="stage", requires=(Require(STRANGER, guard),))
    refused(graph.rows, missing)
    graph.rows.records[STRANGER] = standalone()
    fine = join(FLOW, standalone()).members[0]
    stale = msgspec.structs.replace(fine, target=member(1), guard=guard)
    refused(graph.rows, FlowPlan(flow_id=FLOW, rule="join", members=(fine, stale)))


def test_a_group_that_changed_since_it_was_read_refuses_the_plan() -> None:
    graph = Graph((ROOT, ROOT, Inbound((0,))))
    edge = new_edge(1, 2)
    read = graph.rows.groups[member(2)]
    plan = stage(edge, read, graph.flow().graph_revision)
    graph.end(0, "success")
    refused(graph.rows, plan)
    refused(graph.rows, stage(edge, None, graph.flow().graph_revision))
    done(graph, stage(edge, graph.rows.groups[member(2)], graph.flow().graph_revision))


def test_an_edge_keeps_its_ends() -> None:
    graph = Graph((ROOT, ROOT, Inbound((0,))))
    taken = new_edge(1, 2, edge_id=edge_id(0, 2))
    refused(graph.rows, stage(taken, graph.rows.groups[member(2)], 0))


@pytest.mark.parametrize(
    "plan",
    [
        FlowPlan(flow_id=FLOW, rule="tag", set={"counts": {}}),
        FlowPlan(flow_id=FLOW, rule="tag", stamp=("created_at",)),
        FlowPlan(flow_id=FLOW, rule="join", create=Flow(flow_id="x", namespace="team")),
        FlowPlan(
            flow_id=FLOW,
            rule="join",
            members=(Plan(target=STRANGER, rule="note", guard=Guard(frozenset({"waiting"}))),),
        ),
        FlowPlan(flow_id=FLOW, rule="stage", requires=(Require(STRANGER, Guard(frozenset())),)),
        FlowPlan(
            flow_id=FLOW,
            rule="stage",
            graph=GraphEdit(edges=(new_edge(0, 1, flow_id="another"),)),
        ),
    ],
)
def test_a_plan_no_store_could_apply_is_a_fault_of_its_maker(plan: FlowPlan) -> None:
    with pytest.raises(ValueError, match="flow plan"):
        check_flow_plan(plan)


# ---- members


@pytest.mark.parametrize("situation", ["waiting", "active", "suspended", "completed", "failed"])
def test_a_member_joins_in_whatever_state_it_is(situation: Any) -> None:
    graph = Graph((ROOT,))
    record = record_in(situation, execution_id=STRANGER)
    graph.rows.records[STRANGER] = record
    before = graph.flow()
    answer = done(graph, join(FLOW, record))
    assert answer.flow.node_count == before.node_count + 1
    assert answer.flow.graph_revision == before.graph_revision + 1
    assert sum(answer.flow.counts.values()) == 2
    joined = graph.rows.records[STRANGER]
    assert (joined.state, joined.flow_id) == (record.state, FLOW)
    assert joined.version == record.version + 1


def test_a_live_member_opens_a_finished_flow_again() -> None:
    graph = Graph((ROOT,))
    graph.end(0, "success")
    assert graph.flow().finished_at
    graph.rows.records[STRANGER] = standalone()
    answer = done(graph, join(FLOW, standalone()))
    assert (answer.flow.finished_at, answer.flow.purge_at) == (0, 0)


def test_tags_are_written_over_those_there_are() -> None:
    graph = Graph((ROOT,))
    done(graph, set_flow_tags(FLOW, {"app.a": "1", "app.b": "1"}))
    answer = done(graph, set_flow_tags(FLOW, {"app.b": "2"}))
    assert answer.flow.tags == {"app.a": "1", "app.b": "2"}
    graph.rows.put_flow(msgspec.structs.replace(graph.flow(), cancelled_at=NOW))
    assert done(graph, set_flow_tags(FLOW, {"app.c": "3"})).flow.tags["app.c"] == "3"


# ---- edges


def test_a_staged_edge_is_counted_but_holds_nobody_back() -> None:
    graph = Graph((ROOT, ROOT))
    answer = done(graph, stage(new_edge(0, 1), None, 0))
    assert (answer.flow.graph_revision, answer.flow.edge_count) == (1, 1)
    assert graph.state(1) == "waiting"
    group = graph.rows.groups[member(1)]
    assert (group.n, group.staged, group.state) == (0, 1, "pending")
    graph.end(0, "success")
    assert graph.rows.edges[edge_id(0, 1)].state == "staged"


def test_a_final_target_takes_no_edge() -> None:
    graph = Graph((ROOT, ROOT))
    plan = stage(new_edge(0, 1), None, 0)
    graph.end(1, "success")
    refused(graph.rows, plan)


def staged_pair(graph: Graph) -> tuple[Edge, Group]:
    done(graph, stage(new_edge(0, 1), None, graph.flow().graph_revision))
    return graph.rows.edges[edge_id(0, 1)], graph.rows.groups[member(1)]


def test_an_applied_edge_makes_its_downstream_wait() -> None:
    graph = Graph((ROOT, ROOT))
    edge, group = staged_pair(graph)
    answer = done(graph, link(edge, group, graph.record(1)))
    (counted,) = answer.groups
    assert (counted.n, counted.staged, counted.state) == (1, 0, "pending")
    record = graph.record(1)
    assert (record.state, record.reason) == ("blocked", "dependencies")
    assert record.detail == f"1 dep(s) unresolved incl {edge.edge_id}"
    assert answer.flow.counts == {"waiting": 1, "waiting_children": 1}
    assert (answer.flow.edge_count, answer.flow.graph_revision) == (1, 1), "it was counted before"
    graph.end(0, "success")
    assert graph.state(1) == "waiting"


@pytest.mark.parametrize(
    ("situation", "wake_at"),
    [
        (Situation("delayed", "delay", "first"), NOW + 5_000),
        (Situation("delayed", "retry_backoff", "retry"), NOW + 5_000),
        (Situation("blocked", "budget", "first"), 0),
        (Situation("blocked", "route", "first"), 0),
    ],
)
def test_a_delay_is_remembered_and_the_next_look_at_a_limit_is_not(
    situation: Situation, wake_at: int
) -> None:
    graph = Graph((ROOT, ROOT))
    edge, group = staged_pair(graph)
    record = record_in(situation, execution_id=member(1), flow_id=FLOW, wake_at=NOW + 5_000)
    graph.rows.records[member(1)] = record
    done(graph, link(edge, group, record))
    held = graph.record(1)
    assert (held.state, held.reason, held.next) == ("blocked", "dependencies", situation.next)
    assert held.wake_at == wake_at


@pytest.mark.parametrize(
    ("outcome", "state"),
    [("success", "waiting"), ("failed", "skipped"), ("cancelled", "skipped")],
)
def test_an_edge_whose_upstream_ended_is_settled_in_the_step_that_applies_it(
    outcome: Any, state: str
) -> None:
    graph = Graph((ROOT, ROOT))
    edge, group = staged_pair(graph)
    graph.end(0, outcome)
    answer = done(graph, link(edge, group, graph.record(1)))
    assert graph.state(1) == state
    (counted,) = answer.groups
    assert counted.state == ("satisfied" if outcome == "success" else "impossible")
    assert graph.rows.edges[edge.edge_id].outcome == outcome


def test_one_more_edge_makes_a_satisfied_all_of_wait_again() -> None:
    graph = Graph((ROOT, ROOT, Inbound((0,))))
    graph.end(0, "success")
    group = graph.rows.groups[member(2)]
    assert group.state == "satisfied"
    late = new_edge(1, 2, state="open")
    answer = done(graph, link(late, group, graph.record(2), graph.flow().graph_revision))
    assert graph.state(2) == "blocked"
    (waiting,) = answer.groups
    assert (waiting.state, waiting.fired_at, waiting.n, waiting.succeeded) == ("pending", 0, 2, 1)
    graph.end(1, "success")
    assert graph.state(2) == "waiting"


def test_one_more_edge_changes_nothing_for_a_group_that_has_enough() -> None:
    graph = Graph((ROOT, ROOT, Inbound((0,), "any_of", 1, "let_run")))
    graph.end(0, "success")
    version = graph.record(2).version
    done(graph, link(new_edge(1, 2, state="open"), graph.rows.groups[member(2)], graph.record(2)))
    assert (graph.state(2), graph.record(2).version) == ("waiting", version)
    graph.end(1, "failed")
    assert graph.state(2) == "waiting"


def test_a_group_policy_is_written_over_an_earlier_one() -> None:
    graph = Graph((ROOT, ROOT))
    done(graph, combine(FLOW, member(1), None, EdgePolicy("quorum", 3, "let_run")))
    group = graph.rows.groups[member(1)]
    assert (group.policy, group.k, group.on_satisfied) == ("quorum", 3, "let_run")
    done(graph, combine(FLOW, member(1), group, EdgePolicy("any_of", 0, "cancel_remaining")))
    group = graph.rows.groups[member(1)]
    assert (group.policy, group.k, group.on_satisfied) == ("any_of", 1, "cancel_remaining")
    assert graph.flow().graph_revision == 0


# ---- cancel


def test_a_cancel_writes_the_flow_and_ends_what_it_covers() -> None:
    graph = Graph((ROOT, ROOT, Inbound((0,))))
    graph.claim(1)
    answer = done(graph, cancel_flow(FLOW, "cancel_all", "enough"))
    assert (answer.cancelled, answer.more) == (3, False)
    flow = answer.flow
    assert (flow.cancelled_at, flow.cancel_reason, flow.cancel_policy) == (
        graph.rows.now,
        "enough",
        "cancel_all",
    )
    assert (flow.counts, flow.finished_at) == ({"cancelled": 3}, graph.rows.now)
    assert flow_state(flow) == "cancelled"
    for number in range(3):
        record = graph.record(number)
        assert (record.cancelled_by, record.cancellation_reason) == ("flow_cascade", "enough")
    assert graph.rows.edges[edge_id(0, 2)].state == "open", "a cascade settles no edges"
    acquired, requested, *others = graph.rows.entries
    assert (acquired.kind, requested.kind) == ("acquired", "flow_cancel_requested")
    assert [entry.kind for entry in others] == ["released", "released", "released", "finished"]
    assert requested.families == ("operator",)
    assert requested.details == {"policy": "cancel_all", "reason": "enough"}
    assert refused(graph.rows, cancel_flow(FLOW, "flow_only", "again")) == graph.flow()


@pytest.mark.parametrize(
    ("policy", "left"),
    [("cancel_all", []), ("cancel_pending", [1, 3]), ("flow_only", [0, 1, 2, 3])],
)
def test_each_policy_spares_whom_it_does_not_cover(policy: Any, left: list[int]) -> None:
    graph = Graph((ROOT, ROOT, Inbound((0,)), ROOT))
    graph.claim(1)
    graph.claim(3)
    graph.rows.records[member(3)] = msgspec.structs.replace(
        graph.record(3), state="lost", reason="lease_expired", next="reclaim"
    )
    done(graph, cancel_flow(FLOW, policy, "enough"))
    assert graph.live() == left
    assert members_to_cancel(graph.flow()) == 0
    assert graph.flow().due_at == 0


def test_a_large_cancel_goes_on_in_steps_until_nobody_is_left() -> None:
    graph = Graph((ROOT,) * 25)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow_cancel, "MEMBERS_PER_STEP", 10)
        answer = done(graph, cancel_flow(FLOW, "cancel_all", "enough"))
        assert (answer.cancelled, answer.more, answer.flow.due_at) == (10, True, graph.rows.now)
        assert go_on_with(graph.rows, graph.flow())
        assert len(graph.live()) == 5
        assert not go_on_with(graph.rows, graph.flow())
    assert (graph.live(), graph.flow().due_at) == ([], 0)
    assert graph.flow().finished_at
    assert [entry.kind for entry in graph.rows.entries].count("released") == 25


def test_a_member_to_cancel_only_later_wakes_the_flows_timer() -> None:
    graph = Graph((ROOT,))
    fence = graph.claim(0)
    done(graph, cancel_flow(FLOW, "cancel_pending", "enough"))
    assert (graph.live(), graph.flow().due_at) == ([0], 0)
    handed_back = Plan(
        target=member(0),
        rule="delay",
        guard=Guard(frozenset({"active"}), fence),
        set={"state": "waiting", "next": "resume"},
    )
    graph.rows.now += 5
    answer = apply(graph.rows, handed_back)
    assert isinstance(answer, Applied)
    assert answer.more, "whoever did that can end it at once"
    assert graph.flow().due_at == graph.rows.now
    assert not go_on_with(graph.rows, graph.flow())
    assert (graph.state(0), graph.record(0).cancellation_reason) == ("cancelled", "enough")


def test_what_a_cancel_ends_nothing_else_releases_or_skips() -> None:
    graph = Graph((ROOT, *[Inbound((0,))] * 6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settle, "EDGES_PER_STEP", 2)
        patch.setattr(flow_cancel, "MEMBERS_PER_STEP", 1)
        assert graph.end(0, "failed")
        done(graph, cancel_flow(FLOW, "cancel_all", "enough"))
        while go_on_with(graph.rows, graph.flow()):
            pass
    states = [graph.state(i) for i in range(1, 7)]
    assert states == ["skipped"] * 2 + ["cancelled"] * 4
    assert graph.flow().unsettled == ()
    assert graph.flow().due_at == 0


class UnreadableRows(FakeRows):
    """One member is there, but reading it fails."""

    broken = ""

    def record(self, execution_id: str) -> Record | None:
        if execution_id == self.broken:
            raise Corruption("record: state: unknown")
        return super().record(execution_id)

    def expect(self, members: Any) -> None:
        if self.broken in members:
            raise Corruption("record: state: unknown")


def test_a_member_that_cannot_be_read_keeps_nobody_else_from_ending() -> None:
    graph = Graph((ROOT,) * 5)
    rows = UnreadableRows(NOW, *graph.rows.records.values())
    rows.flows = graph.rows.flows
    rows.broken = member(1)
    answer = apply_flow(rows, cancel_flow(FLOW, "cancel_all", "enough"))
    assert isinstance(answer, FlowApplied)
    assert (answer.cancelled, answer.more) == (4, True)
    assert rows.flows[FLOW].due_at == NOW, "the timer tries again"
    assert not go_on_with(rows, rows.flows[FLOW]), "but nobody spins on it"
    rows.broken = ""
    assert not go_on_with(rows, rows.flows[FLOW])
    assert rows.records[member(1)].state == "cancelled"
    assert rows.flows[FLOW].due_at == 0


# ---- the flow's one timer


def timed(**fields: Any) -> Flow:
    values: dict[str, Any] = {"counts": {"waiting": 1}, "node_count": 1} | fields
    return Flow(flow_id=FLOW, namespace="team", **values)


LEFT: Final = (Unsettled("settle", STRANGER),)


@pytest.mark.parametrize(
    ("flow", "due_at"),
    [
        (timed(), 0),
        (timed(due_at=3), 0),
        (timed(unsettled=LEFT), NOW),
        (timed(unsettled=LEFT, due_at=NOW - 9), NOW - 9),
        (timed(unsettled=LEFT, due_at=NOW + 9), NOW),
        (timed(incomplete=True, submit_until=NOW + 9), NOW + 9),
        (timed(incomplete=True, submit_until=NOW + 9, unsettled=LEFT), NOW),
        (timed(cancelled_at=1, cancel_policy="cancel_all"), NOW),
        (timed(cancelled_at=1, cancel_policy="cancel_pending"), NOW),
        (timed(cancelled_at=1, cancel_policy="flow_only"), 0),
        (timed(cancelled_at=1, cancel_policy="cancel_pending", counts={"active": 1}), 0),
        (timed(cancelled_at=1, cancel_policy="cancel_all", counts={"failed": 1}), 0),
        (
            timed(
                incomplete=True,
                submit_until=NOW + 9,
                cancelled_at=1,
                cancel_policy="cancel_all",
                counts={"cancelled": 1},
            ),
            0,
        ),
    ],
)
def test_the_timer_of_a_flow_follows_from_what_it_has_left_to_do(flow: Flow, due_at: int) -> None:
    assert flow_due_at(flow, NOW) == due_at
    assert has_work(flow) == (0 < due_at <= NOW)


def test_a_timer_that_nothing_asks_for_is_cleared_when_it_rings() -> None:
    graph = Graph((ROOT,))
    graph.rows.put_flow(msgspec.structs.replace(graph.flow(), due_at=3))
    assert not go_on_with(graph.rows, graph.flow())
    assert graph.flow().due_at == 0


# ---- submits that were abandoned


def test_a_submit_is_abandoned_when_its_time_is_over() -> None:
    half = timed(incomplete=True, submit_until=NOW)
    assert is_abandoned(half, NOW)
    assert not is_abandoned(half, NOW - 1)
    assert not is_abandoned(msgspec.structs.replace(half, cancelled_at=NOW), NOW)
    assert not is_abandoned(timed(), NOW)


def test_an_abandoned_graph_ends_although_it_never_was_whole() -> None:
    graph = Graph((ROOT, Inbound((0,))))
    half = msgspec.structs.replace(graph.flow(), incomplete=True, submit_until=NOW)
    graph.rows.put_flow(half)
    answer = done(graph, abandon(graph.flow()))
    flow = answer.flow
    assert (flow.cancel_policy, flow.cancel_reason) == ("cancel_all", "submit_abandoned")
    assert (flow.counts, flow.incomplete, is_over(flow)) == ({"cancelled": 2}, True, True)
    assert flow.finished_at == graph.rows.now


def test_a_submitter_that_came_back_is_not_given_up() -> None:
    graph = Graph((ROOT,))
    graph.rows.put_flow(msgspec.structs.replace(graph.flow(), incomplete=True, submit_until=NOW))
    plan = abandon(graph.flow())
    keep_flow(graph.rows, msgspec.structs.replace(graph.flow(), submit_until=NOW + 1))
    refused(graph.rows, plan)


# ---- bounds and invariants of settling


def test_more_outcomes_than_edges_are_a_broken_invariant() -> None:
    graph = Graph((ROOT, Inbound((0,))))
    graph.rows.put_group(msgspec.structs.replace(graph.rows.groups[member(1)], succeeded=1))
    with pytest.raises(InvariantViolation):
        graph.end(0, "success")


def test_looking_for_who_needs_a_sibling_is_bounded_too() -> None:
    """Member 1 leads to many that fired already; only then is it clear that nobody needs it."""
    many = 30
    shape = (
        ROOT,
        ROOT,
        ROOT,
        Inbound((0, 1), "any_of", 1, "cancel_remaining"),
        *[Inbound((1, 2), "any_of", 1, "let_run")] * many,
    )
    graph = Graph(shape)
    graph.end(2, "success")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settle, "LOOKS_PER_STEP", 10)
        patch.setattr(settle, "PAGE", 4)
        assert graph.end(0, "success")
        steps = graph.settle()
    assert steps > many // 10
    assert graph.state(1) == "cancelled"
    assert graph.flow().unsettled == ()
    assert all(edge.state != "open" for edge in graph.rows.edges.values())


def test_what_is_left_of_a_wide_and_deep_cascade_stays_short() -> None:
    width = 200
    shape = (ROOT, *[Inbound((0,))] * width, *(Inbound((i + 1,)) for i in range(width)))
    graph = Graph(shape)
    longest = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settle, "EDGES_PER_STEP", 5)
        more = graph.end(0, "failed")
        while more:
            longest = max(longest, len(graph.flow().unsettled))
            more = go_on_with(graph.rows, graph.flow())
    assert longest <= 2 * 5 + 1
    assert graph.flow().counts == {"failed": 1, "skipped": 2 * width}


def test_a_tag_of_a_member_is_none_of_the_flows_business() -> None:
    graph = Graph((ROOT,))
    before = graph.flow()
    assert isinstance(apply(graph.rows, set_tags(graph.record(0), {"app.a": "b"})), Applied)
    assert graph.flow() == before


@pytest.mark.parametrize("policy", ["cancel_all", "cancel_pending", "flow_only"])
def test_a_replay_decided_before_the_cancel_is_refused_after_it(policy: Any) -> None:
    graph = Graph((ROOT, ROOT))
    apply(graph.rows, cancel(member(0), "why", "operator_override", None))
    record = graph.record(0)
    guard = Guard(frozenset({record.state}), version=record.version, uncancelled=True)
    plan = Plan(
        target=member(0), rule="replay", guard=guard, set={"state": "waiting", "next": "replay"}
    )
    done(graph, cancel_flow(FLOW, policy, "enough"))
    assert not isinstance(apply(graph.rows, plan), Applied)
    assert graph.state(0) in FINAL
