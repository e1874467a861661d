"""The state vector, cell by cell, and the texts that go with it."""

from itertools import product
from typing import Final, get_args

import pytest

from flowfabric.core.facets import Facets, Scene, blocking_detail, facets, is_legal
from flowfabric.core.states import (
    BLOCK_REASONS,
    DELAY_REASONS,
    FINAL,
    LOST_REASONS,
    STATES,
    Next,
    State,
)
from tests.unit.core.records import FINAL_SITUATIONS, SITUATIONS, Situation, record_in

_BY_NEXT: Final = {
    "first": "pending_first_attempt",
    "retry": "pending_retry_attempt",
    "replay": "pending_replay_attempt",
    "resume": "attempt_interrupted",
}
_UNTIL: Final = "not_eligible_until_time"
_EXPIRED: Final = "lease_expired_reclaimable"
_ROUTE: Final = "waiting_for_capable_worker"
_ANY: Final[tuple[Next, ...]] = ("first", "retry", "replay", "resume")

# (state, reason, nexts): eligibility, blocking reason, public state
RUNNABLE: Final[dict[tuple[State, str, tuple[Next, ...]], tuple[str, str, str]]] = {
    ("waiting", "", _ANY): ("eligible_now", "waiting_for_worker", "waiting"),
    ("delayed", "delay", _ANY): (_UNTIL, "waiting_for_delay", "delayed"),
    ("delayed", "retry_backoff", ("retry",)): (_UNTIL, "waiting_for_retry_backoff", "delayed"),
    ("delayed", "resume_delay", ("resume",)): (_UNTIL, "waiting_for_resume_delay", "delayed"),
    ("blocked", "dependencies", _ANY): (
        "blocked_by_dependencies",
        "waiting_for_children",
        "waiting_children",
    ),
    ("blocked", "budget", _ANY): ("blocked_by_budget", "waiting_for_budget", "rate_limited"),
    ("blocked", "quota", _ANY): ("blocked_by_quota", "waiting_for_quota", "rate_limited"),
    ("blocked", "concurrency", _ANY): ("blocked_by_quota", "waiting_for_quota", "rate_limited"),
    ("blocked", "route", _ANY): ("blocked_by_route", _ROUTE, "waiting"),
    ("blocked", "lane_state", _ANY): ("blocked_by_lane_state", "paused_by_policy", "waiting"),
    ("blocked", "operator", _ANY): ("blocked_by_operator", "paused_by_operator", "waiting"),
    ("blocked", "flow_cancel", _ANY): ("blocked_by_operator", "paused_by_flow_cancel", "waiting"),
}
# (state, reason): phase, ownership, blocking reason, attempt state, public state
UNRUNNABLE: Final[dict[tuple[State, str], tuple[str, str, str, str, str]]] = {
    ("active", ""): ("active", "leased", "none", "running_attempt", "active"),
    ("lost", "lease_expired"): (
        "active",
        _EXPIRED,
        "waiting_for_worker",
        "attempt_interrupted",
        "active",
    ),
    ("lost", "lease_revoked"): (
        "active",
        "lease_revoked",
        "waiting_for_worker",
        "attempt_interrupted",
        "active",
    ),
    **{
        ("suspended", reason): (
            "suspended",
            "unowned",
            blocking,
            "attempt_interrupted",
            "suspended",
        )
        for reason, blocking in (
            ("signal", "waiting_for_signal"),
            ("approval", "waiting_for_approval"),
            ("callback", "waiting_for_callback"),
            ("tool_result", "waiting_for_tool_result"),
            ("operator", "paused_by_operator"),
            ("policy", "paused_by_policy"),
            ("budget", "waiting_for_budget"),
            ("nondeterminism", "paused_by_operator"),
            ("first", "waiting_for_signal"),
        )
    },
}
_NEXT_OF: Final[dict[State, Next]] = {"active": "", "lost": "reclaim", "suspended": "resume"}
_OUTCOMES: Final = {
    "completed": "success",
    "failed": "failed",
    "cancelled": "cancelled",
    "expired": "expired",
    "skipped": "skipped",
}


def _cells() -> list[tuple[Situation, Facets]]:
    cells = []
    for (state, reason, nexts), (eligibility, blocking, public) in RUNNABLE.items():
        for following in nexts:
            vector = Facets(
                "runnable", "unowned", eligibility, blocking, "none", _BY_NEXT[following], public
            )
            cells.append((Situation(state, reason, following), vector))
    for (state, reason), (phase, owner, blocking, attempt, public) in UNRUNNABLE.items():
        vector = Facets(phase, owner, "not_applicable", blocking, "none", attempt, public)
        cells.append((Situation(state, reason, _NEXT_OF[state]), vector))
    return cells


CELLS: Final = _cells()


@pytest.mark.parametrize(
    ("situation", "vector"), CELLS, ids=[str(situation) for situation, _ in CELLS]
)
def test_a_live_execution_shows_its_row_of_the_table(situation: Situation, vector: Facets) -> None:
    assert facets(record_in(situation), strict=True) == vector


@pytest.mark.parametrize("situation", FINAL_SITUATIONS, ids=str)
def test_an_ended_execution_that_ran_shows_its_outcome(situation: Situation) -> None:
    outcome = _OUTCOMES[situation.state]
    assert facets(record_in(situation, attempt_count=2), strict=True) == Facets(
        "terminal",
        "unowned",
        "not_applicable",
        "none",
        outcome,
        "attempt_terminal",
        situation.state,
    )


@pytest.mark.parametrize("state", ["failed", "cancelled", "expired"])
@pytest.mark.parametrize("following", _ANY)
def test_one_that_ended_before_it_ran_keeps_the_attempt_it_waited_for(
    state: State, following: Next
) -> None:
    unrun = record_in(Situation(state, "", following), attempt_count=0)
    assert facets(unrun, strict=True).attempt_state == _BY_NEXT[following]


@pytest.mark.parametrize("following", _ANY)
def test_one_skipped_before_it_ran_has_no_attempt(following: Next) -> None:
    unrun = record_in(Situation("skipped", "", following), attempt_count=0)
    assert facets(unrun, strict=True).attempt_state == "none"


_REASONS: Final = sorted(
    {"", "bogus", "signal", "approval", "callback", "tool_result", "operator", "policy", "budget"}
    | DELAY_REASONS
    | BLOCK_REASONS
    | LOST_REASONS
)
_NEXTS: Final[tuple[Next, ...]] = get_args(Next)
_ILLEGAL: Final = sorted(
    {Situation(s, r, n) for s, r, n in product(STATES, _REASONS, _NEXTS)} - set(SITUATIONS)
)


@pytest.mark.parametrize("state", sorted(STATES))
def test_what_no_rule_writes_is_refused_when_strict(state: State) -> None:
    illegal = [situation for situation in _ILLEGAL if situation.state == state]
    assert illegal
    for situation in illegal:
        record = record_in(situation)
        assert not is_legal(record), situation
        with pytest.raises(ValueError, match="no rule writes"):
            facets(record, strict=True)


@pytest.mark.parametrize("state", sorted(STATES))
def test_what_no_rule_writes_still_shows_its_state(state: State) -> None:
    plain = facets(record_in(state))
    for situation in _ILLEGAL:
        if situation.state == state:
            vector = facets(record_in(situation))
            assert vector.lifecycle_phase == plain.lifecycle_phase
            assert vector.terminal_outcome == plain.terminal_outcome
            assert vector.blocking_reason == "none"


def test_the_legal_situations_are_those_the_table_lists() -> None:
    listed = {situation for situation, _ in CELLS}
    assert listed == {situation for situation in SITUATIONS if situation.state not in FINAL}
    for situation in SITUATIONS:
        assert is_legal(record_in(situation)), situation


_PENDING: Final = frozenset(_BY_NEXT.values())
_OWNED: Final = frozenset({"leased", _EXPIRED, "lease_revoked"})


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
@pytest.mark.parametrize("attempts", [0, 1])
def test_the_dimensions_agree_with_each_other(situation: Situation, attempts: int) -> None:
    record = record_in(situation, attempt_count=attempts)
    vector = facets(record, strict=True)
    match vector.lifecycle_phase:
        case "active":
            assert vector.ownership_state in _OWNED
            running = vector.attempt_state == "running_attempt"
            assert running == (vector.ownership_state == "leased")
            assert running or vector.attempt_state == "attempt_interrupted"
        case "runnable":
            assert vector.eligibility_state != "not_applicable"
            assert vector.attempt_state in _PENDING
        case "suspended":
            assert vector.attempt_state == "attempt_interrupted"
        case phase:
            assert phase == "terminal"
            assert vector.blocking_reason == "none"
            assert (vector.attempt_state == "attempt_terminal") == bool(attempts)
    assert (vector.ownership_state == "unowned") == (vector.lifecycle_phase != "active")
    assert (vector.terminal_outcome == "none") == (vector.lifecycle_phase != "terminal")
    assert (vector.eligibility_state == "not_applicable") == (vector.lifecycle_phase != "runnable")
    held = vector.ownership_state in _OWNED
    assert bool(record_in(situation).lease_id) == held


def test_words_kept_for_later_are_never_shown() -> None:
    for situation in SITUATIONS:
        for scene in (None, Scene("paused"), Scene(served=False)):
            vector = facets(record_in(situation), scene)
            shown = {getattr(vector, name) for name in vector.__struct_fields__}
            assert not shown & {"submitted", "resumable", "waiting_for_locality_match"}


# lane state, served: eligibility, blocking reason, detail
SCENES: Final = {
    ("active", True): ("eligible_now", "waiting_for_worker", ""),
    ("draining", True): ("eligible_now", "waiting_for_worker", ""),
    ("paused", True): ("blocked_by_lane_state", "paused_by_policy", "lane gpu is paused"),
    ("disabled", True): ("blocked_by_lane_state", "paused_by_policy", "lane gpu is disabled"),
    ("active", False): (
        "blocked_by_route",
        _ROUTE,
        "no connected worker satisfies required_capabilities",
    ),
    ("paused", False): ("blocked_by_lane_state", "paused_by_policy", "lane gpu is paused"),
}


@pytest.mark.parametrize(("lane_state", "served"), SCENES)
@pytest.mark.parametrize("following", _ANY)
def test_waiting_work_shows_what_its_lane_and_workers_do_to_it(
    lane_state: str, served: bool, following: Next
) -> None:
    eligibility, blocking, detail = SCENES[lane_state, served]
    record = record_in(Situation("waiting", "", following), required_capabilities=("gpu",))
    scene = Scene(lane_state, served)
    assert facets(record, scene, strict=True) == Facets(
        "runnable", "unowned", eligibility, blocking, "none", _BY_NEXT[following], "waiting"
    )
    assert blocking_detail(record, scene) == detail


@pytest.mark.parametrize("following", _ANY)
def test_work_that_requires_nothing_waits_for_any_worker(following: Next) -> None:
    record = record_in(Situation("waiting", "", following))
    assert facets(record, Scene("active", served=False)) == facets(record)
    assert blocking_detail(record, Scene("active", served=False)) == ""


@pytest.mark.parametrize(
    "situation", [each for each in SITUATIONS if each.state != "waiting"], ids=str
)
def test_nothing_but_waiting_work_depends_on_the_scene(situation: Situation) -> None:
    record = record_in(situation)
    for scene in (Scene("paused"), Scene(served=False)):
        assert facets(record, scene) == facets(record)
        assert blocking_detail(record, scene) == blocking_detail(record)


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_a_reservation_does_not_show(situation: Situation) -> None:
    plain = record_in(situation)
    reserved = record_in(situation, grant_id="grant-1", grant_until=plain.created_at + 1)
    assert facets(reserved) == facets(plain)
    assert blocking_detail(reserved) == blocking_detail(plain)


def test_a_stored_detail_is_shown_as_it_is() -> None:
    record = record_in(Situation("blocked", "operator", "first"), detail="under review")
    assert blocking_detail(record) == "under review"
    assert blocking_detail(record_in("waiting", detail="said so"), Scene("paused")) == "said so"


@pytest.mark.parametrize("following", _ANY)
def test_a_delay_says_until_when(following: Next) -> None:
    record = record_in(Situation("delayed", "delay", following), wake_at=1_234)
    assert blocking_detail(record) == "delayed until 1234"


def test_a_backoff_says_until_when_and_what_failed() -> None:
    record = record_in(
        Situation("delayed", "retry_backoff", "retry"),
        wake_at=5_678,
        previous_attempt=2,
        retry_reason="timeout: no answer",
    )
    expected = "retry backoff until 5678 (attempt 2 failed: timeout: no answer)"
    assert blocking_detail(record) == expected


@pytest.mark.parametrize("state", sorted(FINAL | {"active"}))
def test_what_runs_or_ended_needs_no_explanation(state: State) -> None:
    assert blocking_detail(record_in(state)) == ""
