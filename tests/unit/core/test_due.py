"""The one timer of a record: which instants count where, and what the passing of each does."""

from itertools import product
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.due import DueContext, due_instant, next_look_ms, on_due
from flowfabric.core.facets import is_legal
from flowfabric.core.plan import Plan, Timer
from flowfabric.core.record import INSTANTS, Record, due_at_of
from flowfabric.core.states import FINAL, LIVE, STATES, State, is_move
from flowfabric.core.transition import guard_holds, transition
from tests.unit.core.records import (
    LIVE_SITUATIONS,
    NOW,
    SITUATIONS,
    Situation,
    changed,
    record_in,
)

COUNTS_IN: Final[dict[str, frozenset[str]]] = {
    "lease_until": frozenset({"active"}),
    "attempt_until": frozenset({"active"}),
    "wake_at": frozenset({"delayed", "blocked", "suspended"}),
    "deadline_at": frozenset[str](LIVE),
    "pending_until": frozenset[str](LIVE),
    "grant_until": frozenset({"waiting", "lost"}),
}
_UNSET: Final = dict.fromkeys(COUNTS_IN, 0)
RETRY_TIMEOUTS: Final = (
    '{"retry_policy":{"max_retries":2,"backoff":{"type":"fixed","delay_ms":500},'
    '"retryable_categories":["timeout"]}}'
)


def due_record(situation: Situation | State, **instants: int) -> Record:
    """A record of which only these instants are set."""
    return changed(record_in(situation), **(_UNSET | instants))


def act(
    record: Record, context: DueContext | None = None, now: int = NOW
) -> tuple[str, Plan, Record]:
    """What the timer does to a record that is due: its duty, its plan, and the record after it."""
    decided = on_due(record, context or DueContext(), now)
    assert decided is not None
    duty, plan = decided
    assert guard_holds(plan.guard, record, now), "the plan was decided for this very record"
    after = transition(record, plan, now).after
    assert is_move(plan.rule, record.state, after.state)
    assert is_legal(after)
    return duty, plan, after


@pytest.mark.parametrize(("instant", "state"), sorted(product(COUNTS_IN, STATES)))
def test_an_instant_counts_in_its_states_only(instant: str, state: State) -> None:
    record = due_record(state, **{instant: NOW})
    counts = state in COUNTS_IN[instant]
    assert due_at_of(record) == (NOW if counts else 0)
    assert due_instant(record, NOW) == (instant if counts else "")
    assert due_instant(record, NOW - 1) == "", "an instant is due when it is reached, not before"


def test_every_instant_of_a_record_has_its_row() -> None:
    assert set(INSTANTS) == set(COUNTS_IN)


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_the_timer_is_the_least_instant_that_counts(situation: Situation) -> None:
    instants = dict.fromkeys(INSTANTS, 0)
    for position, name in enumerate(sorted(INSTANTS)):
        instants[name] = NOW + 10 * position
    record = due_record(situation, **instants)
    counting = [instants[name] for name, states in COUNTS_IN.items() if record.state in states]
    assert record.due_at == min(counting, default=0)


@pytest.mark.parametrize("state", sorted(FINAL))
def test_nothing_is_ever_due_once_an_execution_ended(state: State) -> None:
    record = due_record(state, **dict.fromkeys(INSTANTS, NOW - 1))
    assert record.due_at == 0
    assert on_due(record, DueContext(), NOW) is None


@pytest.mark.parametrize("situation", LIVE_SITUATIONS, ids=str)
def test_nothing_happens_before_its_time(situation: Situation) -> None:
    record = due_record(situation, **dict.fromkeys(INSTANTS, NOW + 1))
    assert on_due(record, DueContext(), NOW) is None


@pytest.mark.parametrize("situation", LIVE_SITUATIONS, ids=str)
def test_a_deadline_expires_every_live_execution(situation: Situation) -> None:
    duty, _, after = act(due_record(situation, deadline_at=NOW))
    assert (duty, after.state, after.reason) == ("execution_deadline", "expired", "")
    assert after.failure_reason == "execution_deadline"
    assert after.next == situation.next, "what the next claim would have been is kept"


def test_a_lease_that_runs_out_is_lost() -> None:
    record = due_record("active", lease_until=NOW, attempt_until=NOW + 1)
    duty, plan, after = act(record)
    assert duty == "lease_expiry"
    assert (after.state, after.reason, after.next) == ("lost", "lease_expired", "reclaim")
    assert after.detail == "lease expired, awaiting reclaim"
    assert after.lost_at == NOW
    assert after.attempt_until == 0, "a lost lease stops the attempt's clock"
    assert (after.lease_id, after.worker_instance_id) == ("lease-1", "pool-1")
    assert plan.close_stream == "lease_expired"


@pytest.mark.parametrize(
    ("policy", "retry_count", "state"),
    [
        ("", 0, "expired"),
        ('{"retry_policy":{}}', 0, "expired"),
        (RETRY_TIMEOUTS, 0, "delayed"),
        (RETRY_TIMEOUTS, 1, "delayed"),
        (RETRY_TIMEOUTS, 2, "expired"),
    ],
)
def test_an_attempt_out_of_time_ends_unless_timeouts_are_retried_by_name(
    policy: str, retry_count: int, state: str
) -> None:
    record = changed(
        due_record("active", attempt_until=NOW), policy=policy, retry_count=retry_count
    )
    duty, plan, after = act(record)
    assert (duty, plan.rule, after.state) == ("attempt_timeout", "expire", state)
    assert after.failure_reason == "attempt_timeout"
    if state == "delayed":
        assert (after.reason, after.next) == ("retry_backoff", "retry")
        assert (after.failure_category, after.wake_at) == ("timeout", NOW + 500)


@pytest.mark.parametrize(
    "situation", [each for each in LIVE_SITUATIONS if each.state == "delayed"], ids=str
)
def test_a_delay_that_is_over_leaves_work_waiting_for_the_same_claim(situation: Situation) -> None:
    duty, _, after = act(due_record(situation, wake_at=NOW))
    assert duty == "delayed_promoter"
    assert (after.state, after.reason, after.next) == ("waiting", "", situation.next)
    assert after.wake_at == 0


@pytest.mark.parametrize("following", ["first", "retry", "replay", "resume"])
def test_a_remembered_delay_is_forgotten_while_dependencies_still_block(following: str) -> None:
    situation = next(
        each for each in LIVE_SITUATIONS if each.reason == "dependencies" and each.next == following
    )
    record = due_record(situation, wake_at=NOW - 5)
    duty, plan, after = act(record)
    assert (duty, plan.rule) == ("delayed_promoter", "recheck")
    assert (after.state, after.reason, after.next) == situation
    assert (after.wake_at, after.moved_at) == (0, record.moved_at)


_LIMITED: Final = [
    each
    for each in LIVE_SITUATIONS
    if each.state == "blocked" and each.reason in ("budget", "quota", "concurrency", "route")
]


@pytest.mark.parametrize("situation", _LIMITED, ids=str)
def test_work_is_unblocked_when_its_limit_has_room(situation: Situation) -> None:
    duty, plan, after = act(due_record(situation, wake_at=NOW), DueContext(admissible=True))
    assert (duty, plan.rule) == ("unblock", "unblock")
    assert (after.state, after.reason, after.next) == ("waiting", "", situation.next)
    assert after.wake_at == 0


@pytest.mark.parametrize("situation", _LIMITED, ids=str)
@pytest.mark.parametrize(("given", "expected"), [(None, 5_000), (700, 700)])
def test_work_whose_limit_has_no_room_is_looked_at_again_later(
    situation: Situation, given: int | None, expected: int
) -> None:
    record = changed(record_in(situation), wake_at=NOW, moved_at=NOW - 8_000)
    duty, plan, after = act(record, DueContext(look_in_ms=given))
    assert (duty, plan.rule) == ("unblock", "recheck")
    assert (after.state, after.reason, after.next) == situation
    assert (after.wake_at, after.moved_at) == (NOW + expected, NOW - 8_000)


@pytest.mark.parametrize(
    ("blocked_for", "look_in"),
    [
        (0, 5_000),
        (9_999, 5_000),
        (10_002, 5_001),
        (30_000, 15_000),
        (119_999, 59_999),
        (120_000, 60_000),
        (10**9, 60_000),
    ],
)
def test_the_longer_work_is_blocked_the_less_often_it_is_looked_at(
    blocked_for: int, look_in: int
) -> None:
    record = record_in(_LIMITED[0], moved_at=NOW - blocked_for)
    assert next_look_ms(record, NOW) == look_in


@pytest.mark.parametrize(
    "situation", [each for each in LIVE_SITUATIONS if each.state in ("waiting", "lost")], ids=str
)
def test_a_reservation_nobody_used_is_cleared(situation: Situation) -> None:
    reserved = {
        "grant_id": "grant-1",
        "grant_kind": "claim",
        "grant_worker": "pool",
        "grant_instance": "pool-1",
        "grant_note": "audit",
    }
    record = changed(due_record(situation, grant_until=NOW), **reserved)
    duty, plan, after = act(record)
    assert (duty, plan.rule) == ("grant_expiry", "ungrant")
    assert (after.state, after.reason, after.next) == situation
    assert [getattr(after, name) for name in (*reserved, "grant_until")] == ["", "", "", "", "", 0]
    assert after.moved_at == record.moved_at


_ORDER: Final = ("lease_until", "attempt_until", "wake_at", "grant_until", "pending_until")


@pytest.mark.parametrize("state", sorted(LIVE))
def test_a_deadline_comes_before_everything_else(state: State) -> None:
    record = due_record(state, **(dict.fromkeys(INSTANTS, NOW - 100) | {"deadline_at": NOW}))
    assert due_instant(record, NOW) == "deadline_at"


@pytest.mark.parametrize("state", sorted(LIVE))
def test_equal_instants_have_a_fixed_order(state: State) -> None:
    counting = [name for name in _ORDER if state in COUNTS_IN[name]]
    for position, name in enumerate(counting):
        record = due_record(state, **dict.fromkeys(counting[position:], NOW - 3))
        assert due_instant(record, NOW) == name


@pytest.mark.parametrize("state", sorted(LIVE))
def test_without_a_deadline_the_earliest_instant_is_acted_on(state: State) -> None:
    counting = [name for name in _ORDER if state in COUNTS_IN[name]]
    for name in counting:
        record = due_record(state, **(dict.fromkeys(counting, NOW) | {name: NOW - 1}))
        assert due_instant(record, NOW) == name


def test_after_an_outage_a_dead_workers_attempt_is_lost_and_not_timed_out() -> None:
    record = due_record("active", lease_until=NOW - 9_000, attempt_until=NOW - 8_000)
    duty, _, lost = act(record)
    assert (duty, lost.state) == ("lease_expiry", "lost")
    assert on_due(lost, DueContext(), NOW + 10**9) is None


# Waiting for the outside has timeouts of its own; holds of operators and lanes have none.
_TIMED: Final = tuple(
    each
    for each in LIVE_SITUATIONS
    if each.state != "suspended" and each.reason not in ("operator", "lane_state", "flow_cancel")
)
_instants: Final = st.one_of(st.just(0), st.integers(NOW - 100_000, NOW + 100_000))


@st.composite
def timed_records(draw: st.DrawFn) -> Record:
    names = [name for name in INSTANTS if name != "pending_until"]
    instants = {name: draw(_instants) for name in names}
    record = record_in(
        draw(st.sampled_from(_TIMED)),
        moved_at=NOW - draw(st.integers(0, 200_000)),
        policy=draw(st.sampled_from(["", '{"retry_policy":{}}', RETRY_TIMEOUTS])),
        retry_count=draw(st.integers(0, 3)),
        flow_id=draw(st.sampled_from(["", "flow-1"])),
    )
    return changed(record, **instants)


_besides: Final = st.builds(
    DueContext,
    admissible=st.booleans(),
    look_in_ms=st.one_of(st.none(), st.integers(1, 60_000)),
    jitter=st.floats(0, 1),
)


@given(timed_records(), _besides)
def test_a_timer_never_fires_twice_for_one_cause(record: Record, context: DueContext) -> None:
    looks = 0
    while record.due_at and record.due_at <= NOW:
        instant = due_instant(record, NOW)
        _, _, after = act(record, context)
        moved = getattr(after, instant)
        assert after.state != record.state or moved == 0 or moved > NOW
        assert after.due_at == due_at_of(after)
        record = after
        looks += 1
        assert looks <= len(INSTANTS)
    assert due_instant(record, NOW) == ""


@given(timed_records(), _besides)
def test_what_is_due_is_what_the_timer_says(record: Record, context: DueContext) -> None:
    is_due = 0 < record.due_at <= NOW
    assert (on_due(record, context, NOW) is not None) == is_due


def test_a_look_is_timed_by_the_store() -> None:
    decided = on_due(due_record(_LIMITED[0], wake_at=NOW), DueContext(look_in_ms=9), NOW)
    assert decided is not None
    assert decided[1].timer == Timer(wake_in=9)
