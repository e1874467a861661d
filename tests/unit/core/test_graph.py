"""Flows and groups as numbers: verdicts, counters, the state a flow shows, who a cancel covers."""

from itertools import product
from typing import Any, Final, NamedTuple

import pytest

from flowfabric.core.graph import (
    FINISHED,
    CancelPolicy,
    Edge,
    Flow,
    Group,
    GroupPolicy,
    count_move,
    count_outcome,
    end_counts,
    flow_state,
    is_cancelled_by_flow,
    judge,
    live_members,
    reopen,
    resolve_edge,
)
from flowfabric.core.states import FINAL, OUTCOMES, PUBLIC_STATES, STATES, State, public_state
from tests.unit.core.records import NOW, SITUATIONS, record_in


def flow(**fields: Any) -> Flow:
    counts = fields.pop("counts", {})
    values = {"node_count": sum(counts.values())} | fields
    return Flow(flow_id="flow-1", namespace="team", counts=counts, **values)


def group(policy: GroupPolicy = "all_of", k: int = 0, **counters: Any) -> Group:
    return Group(target="t", flow_id="flow-1", policy=policy, k=k, **counters)


class Counters(NamedTuple):
    n: int
    succeeded: int
    lost: int
    staged: int


VERDICTS: Final[list[tuple[GroupPolicy, int, Counters, str]]] = [
    ("all_of", 0, Counters(2, 0, 0, 0), "pending"),
    ("all_of", 0, Counters(2, 1, 0, 0), "pending"),
    ("all_of", 0, Counters(2, 2, 0, 0), "satisfied"),
    ("all_of", 0, Counters(2, 2, 0, 1), "pending"),
    ("all_of", 0, Counters(2, 0, 1, 0), "impossible"),
    ("all_of", 0, Counters(2, 1, 1, 1), "impossible"),
    ("any_of", 0, Counters(3, 1, 0, 0), "satisfied"),
    ("any_of", 0, Counters(3, 1, 2, 5), "satisfied"),
    ("any_of", 0, Counters(3, 0, 2, 0), "pending"),
    ("any_of", 0, Counters(3, 0, 3, 0), "impossible"),
    ("quorum", 3, Counters(5, 3, 0, 0), "satisfied"),
    ("quorum", 3, Counters(5, 2, 2, 0), "pending"),
    ("quorum", 3, Counters(5, 2, 3, 0), "impossible"),
    ("quorum", 3, Counters(5, 0, 3, 0), "impossible"),
    ("quorum", 3, Counters(2, 2, 0, 1), "pending"),
    ("quorum", 3, Counters(2, 1, 0, 0), "pending"),
    ("quorum", 3, Counters(2, 2, 0, 0), "impossible"),
    ("quorum", 3, Counters(2, 1, 1, 0), "impossible"),
]


@pytest.mark.parametrize(("policy", "k", "counters", "verdict"), VERDICTS)
def test_the_counters_of_a_group_amount_to_one_verdict(
    policy: GroupPolicy, k: int, counters: Counters, verdict: str
) -> None:
    for failed in range(counters.lost + 1):
        counted = group(
            policy,
            k,
            n=counters.n,
            succeeded=counters.succeeded,
            failed=failed,
            skipped=counters.lost - failed,
            staged=counters.staged,
        )
        assert judge(counted) == verdict


@pytest.mark.parametrize("outcome", sorted(OUTCOMES.values()))
@pytest.mark.parametrize("kind", ["success_only", "finished", "anything"])
def test_only_success_satisfies_an_edge_unless_any_end_will_do(outcome: str, kind: str) -> None:
    edge = Edge(edge_id="e", flow_id="f", source="s", target="t", kind=kind, state="open")
    resolved = resolve_edge(edge, outcome, NOW)
    satisfied = outcome == "success" or kind == "finished"
    assert (resolved.state, resolved.resolved_at) == (
        "satisfied" if satisfied else "impossible",
        NOW,
    )
    counted = count_outcome(group(n=3), resolved, outcome)
    buckets = (counted.succeeded, counted.failed, counted.skipped)
    if satisfied:
        assert buckets == (1, 0, 0)
    else:
        assert buckets == ((0, 0, 1) if outcome == "skipped" else (0, 1, 0))


def test_a_reopened_group_keeps_its_successes_and_waits_for_the_rest() -> None:
    def edge(name: str, state: Any, round: int = 1) -> Edge:
        return Edge(
            edge_id=name,
            flow_id="f",
            source=name,
            target="t",
            state=state,
            round=round,
            resolved_at=NOW,
        )

    fired = Group(
        target="t",
        flow_id="f",
        n=4,
        succeeded=1,
        failed=1,
        skipped=1,
        staged=1,
        round=1,
        state="impossible",
        fired_at=NOW,
        cancel_reason="sibling_quorum_impossible",
    )
    edges = [
        edge("met", "satisfied"),
        edge("failed", "impossible"),
        edge("skipped", "impossible"),
        edge("late", "open"),
        edge("staged", "staged"),
        edge("before", "impossible", round=0),
    ]
    sources = {
        "failed": record_in("failed", replay_count=2),
        "skipped": record_in("waiting", replay_count=1),
        "late": record_in("failed"),
    }
    edit = reopen(fired, edges, sources)
    assert [(one.edge_id, one.state, one.resolved_at, one.past_ends) for one in edit.edges] == [
        ("failed", "open", 0, 3),
        ("skipped", "open", 0, 0),
        ("late", "open", 0, 1),
    ]
    (fresh,) = edit.groups
    assert (fresh.n, fresh.succeeded, fresh.failed, fresh.skipped) == (4, 1, 0, 0)
    assert (fresh.staged, fresh.round, fresh.state) == (1, 1, "pending")
    assert (fresh.fired_at, fresh.cancel_reason) == (0, "")


# ---- flows


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "open"),
        ({"counts": {"waiting": 2}}, "open"),
        ({"counts": {"waiting": 1, "completed": 1}}, "open"),
        ({"counts": {"active": 1, "suspended": 1}}, "running"),
        ({"counts": {"active": 1, "failed": 1}}, "running"),
        ({"counts": {"waiting": 1, "suspended": 1}}, "blocked"),
        ({"counts": {"waiting": 1, "delayed": 1}}, "blocked"),
        ({"counts": {"waiting": 1, "rate_limited": 1}}, "blocked"),
        ({"counts": {"waiting": 1, "waiting_children": 1}}, "blocked"),
        ({"counts": {"completed": 2}}, "completed"),
        ({"counts": {"completed": 1, "skipped": 1}}, "completed"),
        ({"counts": {"completed": 1, "failed": 1}}, "failed"),
        ({"counts": {"completed": 1, "cancelled": 1}}, "failed"),
        ({"counts": {"completed": 1, "expired": 1}}, "failed"),
        ({"counts": {"completed": 1}, "node_count": 1, "incomplete": True}, "open"),
        ({"counts": {}, "node_count": 3, "purged_count": 3}, "completed"),
        ({"counts": {"active": 1}, "cancelled_at": NOW}, "cancelled"),
        ({"counts": {"completed": 1}, "cancelled_at": NOW}, "cancelled"),
    ],
)
def test_a_flow_shows_the_first_state_that_fits(fields: dict[str, Any], state: str) -> None:
    assert flow_state(flow(**fields)) == state


@pytest.mark.parametrize(("before", "after"), list(product(SITUATIONS[::3], SITUATIONS[::4])))
def test_a_move_of_a_member_moves_the_counters_of_its_flow(before: Any, after: Any) -> None:
    left = public_state(before.state, before.reason)
    entered = public_state(after.state, after.reason)
    counted = flow(counts=dict.fromkeys(PUBLIC_STATES, 2))
    moved = count_move(counted, before[:2], after[:2])
    expected = dict(counted.counts)
    expected[left] -= 1
    expected[entered] += 1
    assert moved.counts == expected
    assert (moved is counted) == (left == entered), "a flow nothing happened to is not written"


def test_a_counter_at_zero_is_not_kept() -> None:
    created = count_move(flow(), None, ("waiting", ""))
    assert created.counts == {"waiting": 1}
    assert count_move(created, ("waiting", ""), ("active", "")).counts == {"active": 1}


def test_live_members_are_those_that_have_not_ended() -> None:
    assert live_members(flow(counts=dict.fromkeys(PUBLIC_STATES, 1))) == 6


@pytest.mark.parametrize("state", sorted(STATES))
@pytest.mark.parametrize("policy", ["", "cancel_all", "cancel_pending", "flow_only"])
def test_a_cancel_covers_the_members_its_policy_names(state: State, policy: CancelPolicy) -> None:
    cancelled = flow(cancelled_at=NOW, cancel_policy=policy)
    cancelled_by_flow = {
        "cancel_all": state not in FINAL,
        "cancel_pending": state not in FINAL and state not in ("active", "lost"),
    }
    assert is_cancelled_by_flow(cancelled, state) == cancelled_by_flow.get(policy, False)
    assert not is_cancelled_by_flow(flow(cancel_policy=policy), state)
    assert not is_cancelled_by_flow(None, record_in(state).state)


@pytest.mark.parametrize(
    ("state", "replays", "past_ends", "kind", "counts"),
    [
        ("active", 0, 0, "", False),
        ("completed", 0, 0, "", True),
        ("failed", 0, 0, "", True),
        ("failed", 0, 1, "", False),
        ("failed", 1, 1, "", True),
        ("skipped", 1, 2, "", False),
        ("completed", 0, 1, "", True),
        ("failed", 0, 1, FINISHED, True),
        ("active", 3, 1, FINISHED, False),
    ],
)
def test_an_end_before_a_replay_counts_only_if_it_was_a_success(
    state: Any, replays: int, past_ends: int, kind: str, counts: bool
) -> None:
    edge = Edge(edge_id="e", flow_id="f", source="s", target="t", kind=kind, past_ends=past_ends)
    assert end_counts(edge, record_in(state, replay_count=replays)) is counts
