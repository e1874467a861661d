"""Suspensions as documents and as plans: time, effective states, timeouts, pending waitpoints."""

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.conditions import signal_set
from flowfabric.core.documents import (
    SUSPENSION,
    Document,
    signal_key_name,
    suspend_key_name,
    waitpoint_name,
)
from flowfabric.core.due import DueContext, on_due
from flowfabric.core.facets import facets
from flowfabric.core.plan import Plan, check_plan
from flowfabric.core.record import Record
from flowfabric.core.rules.signals import TIMEOUT_BEHAVIORS, resume
from flowfabric.core.rules.suspensions import next_expiry
from flowfabric.core.states import FINAL, LIVE, STATES, State, is_move
from flowfabric.core.suspend_outcomes import StoredOutcome, read_outcome, write_outcome
from flowfabric.core.suspensions import (
    NOW,
    ResumePolicy,
    Signal,
    SignalKey,
    Suspension,
    Waitpoint,
    how_ended,
    known_signal,
    read_signal,
    read_suspension,
    read_waitpoint,
    waitpoint_state,
    write_document,
)
from flowfabric.core.transition import guard_holds, transition
from flowfabric.errors import Corruption
from tests.unit.core.records import EXECUTION, ONE_PER_STATE, Situation, record_in
from tests.unit.core.records import NOW as TODAY

SUSPENSION_ID: Final = "00000000-0000-4000-8000-000000000005"
WAITPOINT_ID: Final = "00000000-0000-4000-8000-000000000006"
AUTO: Final = "auto_resume_with_timeout_signal"


def suspension(**fields: Any) -> Suspension:
    usual: dict[str, Any] = {
        "suspension_id": SUSPENSION_ID,
        "attempt_index": 0,
        "waitpoint_id": WAITPOINT_ID,
        "waitpoint_key": "k",
        "reason_code": "waiting_for_signal",
        "resume_condition": signal_set("go"),
    }
    return Suspension(**(usual | fields))


def waitpoint(number: int = 6, **fields: Any) -> Waitpoint:
    usual: dict[str, Any] = {
        "waitpoint_id": f"00000000-0000-4000-8000-{number:012}",
        "waitpoint_key": "k",
        "attempt_index": 0,
        "state": "pending",
    }
    return Waitpoint(**(usual | fields))


def suspended(**fields: Any) -> Record:
    return record_in("suspended", **({"suspension_id": SUSPENSION_ID} | fields))


def stored(one: object, at: int = TODAY) -> Document:
    return Document(write_document(one), 1, at)


def applied(record: Record, plan: Plan, now: int = TODAY) -> Record:
    check_plan(plan)
    assert guard_holds(plan.guard, record, now)
    assert is_move(plan.rule, record.state, plan.set.get("state", record.state))
    after = transition(record, plan, now).after
    facets(after, strict=True)
    return after


# ---- time


def test_a_document_takes_the_instant_of_its_last_put() -> None:
    read = read_suspension(stored(suspension(timeout_in=500, closed_at=NOW), 1_000))
    assert (read.created_at, read.closed_at, read.timeout_at) == (1_000, 1_000, 1_500)
    assert (read.timeout_in, read.satisfied_at) == (None, 0)


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.integers(0, 10**9))
def test_what_was_read_stays_what_it_is(first: int, second: int, length: int) -> None:
    once = read_waitpoint(stored(waitpoint(expires_in=length, last_signal_at=NOW), first))
    again = read_waitpoint(stored(once, second))
    assert again == once
    assert (once.expires_at, once.last_signal_at) == (first + length, first)


def test_a_length_beyond_all_time_ends_where_time_does() -> None:
    assert read_waitpoint(stored(waitpoint(expires_in=2**63 - 1))).expires_at == 2**63 - 1


def test_a_signals_own_instants_are_told_apart() -> None:
    sent = Signal(
        signal_id="s",
        waitpoint_id="w",
        signal_name="go",
        signal_category="",
        source_type="",
        source_identity="",
        created_at=5,
    )
    read = read_signal(stored(sent, 1_000))
    assert (read.created_at, read.accepted_at) == (5, 1_000)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\xff\xff", write_document({"state": 1})])
def test_what_cannot_be_read_is_corrupt(body: bytes) -> None:
    for read in (read_suspension, read_waitpoint, read_signal):
        with pytest.raises(Corruption):
            read(Document(body, 1, 1))


def test_a_key_is_remembered_until_its_time_is_up() -> None:
    entry = stored(SignalKey("s-1", 100), 1_000)
    assert known_signal(entry, 1_099) == "s-1"
    assert known_signal(entry, 1_100) == ""
    assert known_signal(None, 0) == ""


@pytest.mark.parametrize(
    ("fields", "ends_at"),
    [
        ({}, 1_000 + 604_800_000),
        ({"timeout_in": 500}, 61_500),
        ({"timeout_in": 0}, 61_000),
        ({"timeout_in": 10**10}, 1_000 + 604_800_000),
        ({"timeout_at": 5_000}, 65_000),
        ({"timeout_at": 10}, 61_000),
        ({"timeout_at": 10**12}, 1_000 + 604_800_000),
    ],
)
def test_an_outcome_is_remembered_a_minute_past_the_timeout(
    fields: dict[str, Any], ends_at: int
) -> None:
    outcome = StoredOutcome(variant="Suspended", suspension_id="s", waitpoints=(), **fields)
    document = Document(write_outcome(outcome), 1, 1_000)
    assert outcome.ends_at(1_000) == ends_at
    assert read_outcome(document, ends_at - 1) == outcome
    assert read_outcome(document, ends_at) is None


@pytest.mark.parametrize("body", [b"", b"{}", b"[", b"\xff"])
def test_an_outcome_that_cannot_be_read_counts_as_none(body: bytes) -> None:
    assert read_outcome(Document(body, 1, 1), 1) is None


@given(st.text(max_size=8), st.text(max_size=8))
def test_no_key_asks_for_a_prefix_and_no_two_share_a_name(one: str, other: str) -> None:
    for name in (suspend_key_name, lambda key: signal_key_name("w", key)):
        assert not name(one).endswith("*")
        assert (name(one) == name(other)) == (one == other)


# ---- effective states


@pytest.mark.parametrize("state", sorted(STATES))
@pytest.mark.parametrize(
    ("written", "expires_at", "own"),
    [
        ("pending", TODAY + 1, True),
        ("pending", TODAY, True),
        ("active", 0, True),
        ("active", 0, False),
        ("closed", TODAY + 1, True),
        ("expired", TODAY + 1, True),
        ("odd", TODAY + 1, True),
    ],
)
def test_what_counts_is_what_the_record_says(
    state: State, written: str, expires_at: int, own: bool
) -> None:
    record = record_in(state, suspension_id=SUSPENSION_ID if state == "suspended" else "")
    one = waitpoint(
        state=written, expires_at=expires_at, suspension_id=SUSPENSION_ID if own else "another"
    )
    expected = "closed"
    if written == "pending" and state in LIVE and expires_at > TODAY:
        expected = "pending"
    if written == "active" and state == "suspended" and own:
        expected = "active"
    assert waitpoint_state(record, one, TODAY) == expected


@pytest.mark.parametrize(
    ("fields", "how"),
    [
        ({}, None),
        ({"close_reason": "resumed", "closer_signal_id": "s"}, "signal"),
        ({"close_reason": "resumed"}, "operator"),
        ({"close_reason": "timed_out_auto_resume", "closer_signal_id": "s"}, "timeout"),
        ({"close_reason": "timed_out_fail"}, None),
    ],
)
def test_how_a_suspension_ended(fields: dict[str, str], how: str | None) -> None:
    assert how_ended(suspension(**fields)) == how


# ---- timeouts


@pytest.mark.parametrize("behavior", [*TIMEOUT_BEHAVIORS, "auto_resume", "", "unheard of"])
@pytest.mark.parametrize("reason", ["signal", "approval", "operator", "budget"])
def test_a_timeout_leaves_the_state_or_clears_its_timer(behavior: str, reason: str) -> None:
    record = record_in(
        Situation("suspended", reason, "resume"),
        suspension_id=SUSPENSION_ID,
        wake_at=TODAY,
        deadline_at=TODAY + 9,
    )
    context = DueContext(documents={SUSPENSION: stored(suspension(timeout_behavior=behavior))})
    decided = on_due(record, context, TODAY)
    assert decided is not None
    duty, plan = decided
    assert duty == "suspension_timeout"
    assert (plan.guard.version, plan.guard.suspension_id) == (record.version, SUSPENSION_ID)
    after = applied(record, plan)
    expected = {"cancel": "cancelled", "expire": "expired", "escalate": "suspended"}
    resumes = behavior in (AUTO, "auto_resume")
    assert after.state == ("waiting" if resumes else expected.get(behavior, "failed"))
    assert after.wake_at == 0
    if after.state in FINAL:
        assert after.attempt is None
    kept = read_suspension(Document(plan.documents[SUSPENSION] or b"", 1, TODAY))
    assert bool(kept.close_reason) == (behavior != "escalate")
    assert on_due(after, context, TODAY) is None


def test_the_signal_of_a_timeout_is_the_same_whoever_decides_it() -> None:
    record = suspended(wake_at=TODAY)
    context = DueContext(documents={SUSPENSION: stored(suspension(timeout_behavior=AUTO))})
    assert on_due(record, context, TODAY) == on_due(record, context, TODAY + 5)


@pytest.mark.parametrize("documents", [{}, {SUSPENSION: stored(suspension(suspension_id="x"))}])
def test_a_record_without_its_suspension_is_left_alone(documents: dict[str, Document]) -> None:
    with pytest.raises(Corruption):
        on_due(suspended(wake_at=TODAY), DueContext(documents=documents), TODAY)


@pytest.mark.parametrize("own", [None, 40])
@pytest.mark.parametrize("asked", [None, 0, 70])
def test_a_resume_waits_as_the_caller_says_else_as_the_policy_does(
    own: int | None, asked: int | None
) -> None:
    record = suspended(wake_at=TODAY + 5)
    held = suspension(resume_policy=ResumePolicy(resume_delay_ms=own))
    after = applied(record, resume(record, held, "operator", asked))
    delay = asked if asked is not None else own or 0
    assert after.state == ("delayed" if delay else "waiting")
    assert after.wake_at == (TODAY + delay if delay else 0)
    assert (after.next, after.suspension_id) == ("resume", "")


# ---- pending waitpoints


@pytest.mark.parametrize("state", sorted(LIVE))
def test_the_timer_closes_what_is_due_and_goes_on_with_the_next(state: State) -> None:
    record = record_in(ONE_PER_STATE[state], pending_until=TODAY, deadline_at=0, wake_at=0)
    record = msgspec.structs.replace(record, lease_until=0, attempt_until=0, grant_until=0)
    ones = [
        waitpoint(1, expires_at=TODAY),
        waitpoint(2, expires_at=TODAY - 50),
        waitpoint(3, expires_at=TODAY + 70),
        waitpoint(4, expires_at=TODAY - 9, state="active"),
    ]
    documents = {waitpoint_name(one.waitpoint_id): stored(one) for one in ones}
    decided = on_due(record, DueContext(documents=documents), TODAY)
    assert decided is not None
    assert decided[0] == "pending_wp_expiry"
    after = applied(record, decided[1])
    assert (after.state, after.pending_until) == (state, TODAY + 70)
    assert sorted(decided[1].documents) == [waitpoint_name(one.waitpoint_id) for one in ones[:2]]
    for body in decided[1].documents.values():
        gone = read_waitpoint(Document(body or b"", 1, TODAY))
        assert (gone.state, gone.close_reason, gone.closed_at) == (
            "closed",
            "never_committed",
            TODAY,
        )


def test_a_timer_that_fires_early_finds_nothing_and_waits_on() -> None:
    record = record_in("waiting", pending_until=TODAY, deadline_at=0)
    one = waitpoint(expires_at=TODAY + 3)
    documents = {waitpoint_name(one.waitpoint_id): stored(one)}
    decided = on_due(record, DueContext(documents=documents), TODAY)
    assert decided is not None
    assert decided[1].documents == {}
    assert applied(record, decided[1]).pending_until == TODAY + 3


def test_with_nobody_left_the_timer_is_off() -> None:
    assert next_expiry("a", [])[0] == {"pending_until": 0}
    only = waitpoint(1, expires_at=5)
    assert next_expiry(only.waitpoint_id, [only])[0] == {"pending_until": 0}
    assert (
        next_expiry("other", [only])[1] == next_expiry("x", [only, waitpoint(2, expires_at=9)])[1]
    )


def test_a_plan_shows_the_names_of_its_documents_only() -> None:
    record = suspended(wake_at=TODAY)
    plan = resume(record, suspension(reason_code="a secret reason"), "operator", None)
    assert b"a secret reason" in (plan.documents[SUSPENSION] or b"")
    assert "a secret reason" not in repr(plan)
    assert EXECUTION in repr(plan)
