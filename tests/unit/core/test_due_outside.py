"""Timers of what waits for the outside: a suspension's end, and waitpoints nobody suspended on."""

from collections.abc import Mapping
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.conditions import Condition
from flowfabric.core.documents import SUSPENSION, Document, waitpoint_name
from flowfabric.core.due import DueContext, due_instant, on_due
from flowfabric.core.facets import is_legal
from flowfabric.core.plan import Plan
from flowfabric.core.record import INSTANTS, Record
from flowfabric.core.states import is_move
from flowfabric.core.suspensions import Suspension, Waitpoint, read_waitpoint, write_document
from flowfabric.core.transition import guard_holds, transition
from tests.unit.core.records import LIVE_SITUATIONS, NOW, Situation, changed, record_in

Documents = Mapping[str, Document]
BEHAVIORS: Final = ("fail", "cancel", "expire", "auto_resume_with_timeout_signal", "escalate")
OPEN: Final = "11111111-2222-4333-8444-555555555555"
SUSPENDED: Final = [each for each in LIVE_SITUATIONS if each.state == "suspended"]


def _stored(body: bytes) -> Document:
    return Document(body, NOW - 10_000, NOW - 10_000)


def suspension(behavior: str) -> dict[str, Document]:
    document = Suspension(
        suspension_id=OPEN,
        attempt_index=0,
        waitpoint_id="waitpoint-1",
        waitpoint_key="wpk:waitpoint-1",
        reason_code="waiting_for_signal",
        timeout_at=NOW,
        timeout_behavior=behavior,
        resume_condition=Condition(condition_type="signal_set"),
    )
    return {SUSPENSION: _stored(write_document(document))}


def waitpoints(*expiries: int) -> dict[str, Document]:
    """Pending waitpoints that end at these instants."""
    return {
        waitpoint_name(f"w{number}"): _stored(
            write_document(
                Waitpoint(
                    waitpoint_id=f"w{number}",
                    waitpoint_key=f"wpk:w{number}",
                    attempt_index=0,
                    state="pending",
                    expires_at=expires_at,
                )
            )
        )
        for number, expires_at in enumerate(expiries)
    }


def act(record: Record, documents: Documents) -> tuple[str, Plan, Record]:
    decided = on_due(record, DueContext(documents=documents), NOW)
    assert decided is not None
    duty, plan = decided
    assert guard_holds(plan.guard, record, NOW)
    after = transition(record, plan, NOW).after
    assert is_move(plan.rule, record.state, after.state)
    assert is_legal(after)
    return duty, plan, after


@pytest.mark.parametrize("situation", SUSPENDED, ids=str)
@pytest.mark.parametrize(
    ("behavior", "state"),
    [
        ("fail", "failed"),
        ("cancel", "cancelled"),
        ("expire", "expired"),
        ("auto_resume_with_timeout_signal", "waiting"),
        ("auto_resume", "waiting"),
        ("escalate", "suspended"),
        ("of another release", "failed"),
    ],
)
def test_a_suspension_out_of_time_ends_as_it_was_told_to(
    situation: Situation, behavior: str, state: str
) -> None:
    record = record_in(situation, wake_at=NOW, suspension_id=OPEN)
    duty, plan, after = act(record, suspension(behavior))
    assert (duty, plan.rule, after.state) == ("suspension_timeout", "timeout", state)
    assert after.wake_at == 0
    assert after.next == "resume"
    assert SUSPENSION in plan.documents


def test_an_escalated_suspension_waits_for_an_operator_without_a_timer() -> None:
    record = record_in(SUSPENDED[0], wake_at=NOW, suspension_id=OPEN)
    _, _, after = act(record, suspension("escalate"))
    assert (after.state, after.reason, after.due_at) == ("suspended", "operator", 0)
    assert after.suspension_id == record.suspension_id


@pytest.mark.parametrize("situation", LIVE_SITUATIONS, ids=str)
def test_pending_waitpoints_that_are_due_are_closed_and_the_next_one_is_waited_for(
    situation: Situation,
) -> None:
    documents = waitpoints(NOW - 5, NOW, NOW + 700, NOW + 900)
    record = changed(record_in(situation, wake_at=0, lease_until=0), pending_until=NOW - 5)
    duty, plan, after = act(record, documents)
    assert (duty, plan.rule) == ("pending_wp_expiry", "waitpoint")
    assert (after.state, after.reason, after.next) == situation
    assert after.pending_until == NOW + 700
    assert sorted(plan.documents) == [waitpoint_name("w0"), waitpoint_name("w1")]
    for body in plan.documents.values():
        assert body is not None
        assert read_waitpoint(_stored(body)).state == "closed"


@pytest.mark.parametrize("situation", LIVE_SITUATIONS, ids=str)
def test_with_no_waitpoint_left_the_timer_is_cleared(situation: Situation) -> None:
    for documents in (waitpoints(NOW), {}):
        record = changed(record_in(situation, wake_at=0, lease_until=0), pending_until=NOW)
        _, _, after = act(record, documents)
        assert after.pending_until == 0


_instants: Final = st.one_of(st.just(0), st.integers(NOW - 1_000, NOW + 1_000))


@given(
    st.sampled_from(SUSPENDED),
    st.sampled_from(BEHAVIORS),
    st.lists(st.integers(NOW - 1_000, NOW + 1_000), min_size=1, max_size=4),
    _instants,
)
def test_no_timer_of_a_suspension_fires_twice_for_one_cause(
    situation: Situation, behavior: str, expiries: list[int], wake_at: int
) -> None:
    documents = suspension(behavior) | waitpoints(*expiries)
    record = changed(
        record_in(situation, suspension_id=OPEN), wake_at=wake_at, pending_until=min(expiries)
    )
    for _ in INSTANTS:
        if not due_instant(record, NOW):
            break
        instant = due_instant(record, NOW)
        _, _, after = act(record, documents)
        moved = getattr(after, instant)
        assert after.state != record.state or moved == 0 or moved > NOW
        record = after
    assert due_instant(record, NOW) == ""
