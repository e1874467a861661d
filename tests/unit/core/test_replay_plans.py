"""What a replay asks of a record: everything of the run that ended goes, its age and count stay."""

from typing import Any

import pytest

from flowfabric.core.graph import GraphEdit, Group
from flowfabric.core.plan import Plan
from flowfabric.core.record import NO_ATTEMPT, Record
from flowfabric.core.rules.replay import Dropped, Reopening, ReplayRequest, Scene, replay
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
    plan = replay(record, ASKED, Scene(NOW, reopened=reopened))
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
    assert (plan.blobs, plan.drop_journal_from) == ({"result": None}, 1)
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


@pytest.mark.parametrize(
    ("dropped", "rounds", "mail"),
    [
        (Dropped(), (4, 4), 0),
        (Dropped(0, mailbox=False), (3, 1), 2),
        (Dropped(5, mailbox=False), (4, 1), 2),
        (Dropped(1, mailbox=False), (4, 4), 2),
    ],
    ids=["all", "nothing", "some", "every step"],
)
def test_what_is_done_anew_has_a_round_of_its_own(
    dropped: Dropped, rounds: tuple[int, int], mail: int
) -> None:
    record = record_in("failed", round=3, kept_round=1, mail_count=2, failure_step="pay#1")
    plan = replay(record, ASKED, Scene(NOW, dropped))
    after = transition(record, plan, NOW).after
    assert (after.round, after.kept_round) == rounds
    assert (after.mail_count, after.failure_step) == (mail, "")
    assert plan.drop_journal_from == dropped.first


def test_the_attempt_of_a_parked_execution_ends() -> None:
    record = record_in(Situation("suspended", "nondeterminism", "resume"))
    plan = replay(record, ASKED, Scene(NOW, Dropped(0, mailbox=False)))
    done = transition(record, plan, NOW)
    assert (done.after.state, done.after.next, done.after.attempt) == ("waiting", "replay", None)
    assert done.ended is not None
    assert (done.ended.state, done.ended.failure_category) == ("ended_failure", "nondeterminism")
    assert (done.ended.closed_at, done.ended.closed_reason) == (NOW, "attempt_failure")
