"""What a replay asks of a record: everything of the run that ended goes, its age and count stay."""

from typing import Any

import pytest

from flowfabric.core.graph import GraphEdit, Group
from flowfabric.core.plan import Plan
from flowfabric.core.record import NO_ATTEMPT, Record
from flowfabric.core.rules.operators import Reopening, ReplayRequest, replay
from flowfabric.core.transition import transition
from tests.unit.core.records import FINAL_SITUATIONS, NOW, Situation, record_in

ASKED = ReplayRequest("once more", "ada")
REOPENED = Reopening(GraphEdit(groups=(Group(target="t", flow_id="f"),)), 2)
OUTCOME: dict[str, Any] = {
    "failure_reason": "it broke",
    "failure_category": "transient",
    "cancellation_reason": "enough",
    "cancelled_by": "ada",
    "result_encoding": "json",
    "retry_count": 2,
    "reclaim_count": 3,
}


def replayed(record: Record, reopened: Reopening | None = None) -> tuple[Plan, Record]:
    plan = replay(record, ASKED, reopened, NOW)
    return plan, transition(record, plan, NOW).after


@pytest.mark.parametrize("situation", FINAL_SITUATIONS, ids=str)
def test_a_replayed_record_waits_as_if_nothing_had_come_of_it(situation: Situation) -> None:
    record = record_in(situation, attempt_count=3, attempt_index=2, replay_count=1, **OUTCOME)
    plan, after = replayed(record)
    assert (after.state, after.reason, after.next) == ("waiting", "", "replay")
    assert (after.completed_at, after.purge_at) == (0, 0)
    assert [getattr(after, name) for name in OUTCOME] == ["", "", "", "", "", 0, 0]
    assert (after.replay_count, after.previous_attempt) == (2, 2)
    assert (after.replay_reason, after.replay_requested_by) == ("once more", "ada")
    assert (plan.blobs, plan.drop_journal) == ({"result": None}, True)
    for name in ("created_at", "started_at", "attempt_count", "lease_epoch", "rank"):
        assert getattr(after, name) == getattr(record, name)


def test_a_member_that_never_ran_has_no_previous_attempt() -> None:
    _, after = replayed(record_in(Situation("skipped", "", "first"), attempt_count=0))
    assert after.previous_attempt == NO_ATTEMPT


@pytest.mark.parametrize(("deadline", "kept"), [(0, 0), (NOW - 1, 0), (NOW, 0), (NOW + 1, NOW + 1)])
def test_a_deadline_counts_again_only_if_it_lies_ahead(deadline: int, kept: int) -> None:
    _, after = replayed(record_in("expired", deadline_at=deadline))
    assert (after.deadline_at, after.due_at) == (kept, kept)


def test_a_skipped_member_waits_for_its_reopened_edges() -> None:
    plan, after = replayed(record_in("skipped"), REOPENED)
    assert (after.state, after.reason, after.next) == ("blocked", "dependencies", "replay")
    assert after.detail == "2 dep(s) unsatisfied after replay"
    assert plan.graph is REOPENED.edit


@pytest.mark.parametrize(
    ("reopened", "branch", "groups"),
    [(None, "normal", "0"), (REOPENED, "skipped_flow_member", "1")],
)
def test_the_log_tells_of_a_replay_to_operators_and_in_the_history(
    reopened: Reopening | None, branch: str, groups: str
) -> None:
    plan, _ = replayed(record_in("skipped", replay_count=4), reopened)
    assert plan.event is not None
    assert (plan.event.kind, plan.event.families) == ("replay_initiated", ("lease", "operator"))
    assert plan.event.details == {
        "replay_count": "5",
        "replay_type": branch,
        "branch": branch,
        "groups_reset": groups,
    }
