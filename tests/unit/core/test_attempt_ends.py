"""What becomes of an attempt and its stream when a rule ends or pauses it, or its lease is lost."""

import pytest

from flowfabric.core.states import HELD
from flowfabric.core.transition import transition
from tests.unit.core.plans import RULES
from tests.unit.core.records import LIVE_SITUATIONS, NOW, Situation, record_in


@pytest.mark.parametrize(
    ("name", "state", "reason", "category", "stream"),
    [
        ("complete", "ended_success", "", "", "attempt_success"),
        ("fail for good", "ended_failure", "it broke", "transient", "attempt_failure"),
        ("fail and retry", "ended_failure", "it broke", "transient", "attempt_failure"),
        (
            "cancel by an operator",
            "ended_cancelled",
            "cancelled: no need",
            "",
            "attempt_cancelled",
        ),
        (
            "cancel_sibling",
            "ended_cancelled",
            "cancelled: sibling_quorum_satisfied",
            "",
            "attempt_cancelled",
        ),
        ("skip", "ended_cancelled", "dependency_impossible", "", "dependency_impossible"),
        ("expire", "ended_failure", "execution_deadline", "", "expired"),
        ("time out", "ended_failure", "attempt_timeout", "", "expired"),
        ("time out and retry", "ended_failure", "attempt_timeout", "timeout", "attempt_failure"),
    ],
)
def test_an_attempt_ends_as_its_rule_says_and_its_stream_closes(
    name: str, state: str, reason: str, category: str, stream: str
) -> None:
    before = record_in("active", policy=RULES[name].policy)
    ended = transition(before, RULES[name].make(before), NOW).ended
    assert ended is not None
    assert (ended.state, ended.ended_at) == (state, NOW)
    assert (ended.failure_reason, ended.failure_category) == (reason, category)
    assert (ended.closed_at, ended.closed_reason) == (NOW, stream)
    assert (ended.lease_id, ended.worker_id) == ("lease-1", "pool")


def test_at_the_reclaim_cap_the_lost_attempt_ends_as_reclaimed() -> None:
    before = record_in("lost")
    ended = transition(before, RULES["exhaust"].make(before), NOW).ended
    assert ended is not None
    assert (ended.state, ended.failure_reason) == ("interrupted_reclaimed", "max_reclaims_exceeded")
    assert ended.closed_reason == "reclaimed"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("complete", "completed"),
        ("fail for good", "failed_terminal"),
        ("fail and retry", "failed_retry_scheduled"),
        ("cancel by an operator", "cancelled"),
        ("cancel_sibling", "cancelled"),
        ("skip", "dependency_impossible"),
        ("expire", "expired:execution_deadline"),
        ("time out", "expired:attempt_timeout"),
    ],
)
def test_an_ended_attempt_remembers_why_its_lease_was_released(name: str, reason: str) -> None:
    before = record_in("active", policy=RULES[name].policy)
    ended = transition(before, RULES[name].make(before), NOW).ended
    assert ended is not None
    assert ended.released_reason == reason


@pytest.mark.parametrize("name", ["cancel by an operator", "expire", "skip", "cancel_sibling"])
@pytest.mark.parametrize(
    "situation",
    [each for each in LIVE_SITUATIONS if each.next == "resume" and each.state not in HELD],
    ids=str,
)
def test_a_paused_attempt_ends_too_but_releases_no_lease(name: str, situation: Situation) -> None:
    before = record_in(situation)
    done = transition(before, RULES[name].make(before), NOW)
    assert done.ended is not None
    assert done.ended.ended_at == NOW
    assert done.ended.released_reason == ""
    assert done.entry is not None
    assert done.entry.families == ("completion",)


@pytest.mark.parametrize(
    ("name", "suspension_id"),
    [
        ("delay until", "worker_delay"),
        ("delay for", "worker_delay"),
        ("hand back", "worker_delay"),
        ("park", "waiting_children"),
        ("park on children", "waiting_children"),
    ],
)
def test_a_pause_keeps_the_attempt_and_the_rest_of_its_time(name: str, suspension_id: str) -> None:
    before = record_in("active", attempt_timeout_ms=9_000, attempt_until=NOW + 4_000)
    done = transition(before, RULES[name].make(before), NOW)
    paused = done.after.attempt
    assert done.ended is None
    assert paused is not None
    assert (paused.state, paused.suspended_at) == ("suspended", NOW)
    assert paused.suspension_id == suspension_id
    assert paused.closed_at == 0, "the stream of a paused attempt stays open"
    assert done.after.attempt_left_ms == 4_000
    assert done.after.attempt_until == 0


@pytest.mark.parametrize(("attempt_until", "left"), [(0, 0), (NOW - 1, 0), (NOW, 0), (NOW + 1, 1)])
def test_the_rest_of_an_attempt_is_never_negative(attempt_until: int, left: int) -> None:
    before = record_in("active", attempt_until=attempt_until)
    after = transition(before, RULES["delay for"].make(before), NOW).after
    assert after.attempt_left_ms == left


@pytest.mark.parametrize(
    ("name", "reason"), [("lose", "lease_expired"), ("revoke", "lease_revoked")]
)
def test_a_lost_lease_closes_the_stream_of_an_attempt_that_stays_open(
    name: str, reason: str
) -> None:
    before = record_in("active")
    done = transition(before, RULES[name].make(before), NOW)
    assert done.ended is None
    assert done.after.attempt is not None
    assert (done.after.attempt.closed_at, done.after.attempt.closed_reason) == (NOW, reason)
    assert (done.after.reason, done.after.next, done.after.lost_at) == (reason, "reclaim", NOW)


def test_a_stream_closed_by_loss_keeps_its_instant_and_gets_the_reason_of_the_end() -> None:
    active = record_in("active")
    lost = transition(active, RULES["lose"].make(active), NOW - 50).after
    ended = transition(lost, RULES["cancel by an operator"].make(lost), NOW).ended
    assert ended is not None
    assert (ended.closed_at, ended.closed_reason) == (NOW - 50, "attempt_cancelled")


def test_without_an_attempt_there_is_nothing_to_end() -> None:
    before = record_in(Situation("waiting", "", "first"))
    done = transition(before, RULES["cancel by an operator"].make(before), NOW)
    assert (done.ended, done.after.attempt) == (None, None)
