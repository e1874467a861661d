"""What a write makes of a record: every rule in every state, and what follows from the new one."""

from typing import Any, Final

import pytest

from flowfabric.core.apply import apply
from flowfabric.core.facets import is_legal
from flowfabric.core.plan import Fence, Guard, Plan, Timer, check_plan
from flowfabric.core.record import (
    GRANT_FIELDS,
    LEASE_FIELDS,
    SUSPENSION_FIELDS,
    Record,
    due_at_of,
    rank_of,
)
from flowfabric.core.rules.attempts import complete, delay, progress, renew
from flowfabric.core.rules.operators import Block, at_version, block, change_priority, note
from flowfabric.core.states import CLAIMABLE, FINAL, HELD, LIVE, State, is_move
from flowfabric.core.transition import guard_holds, is_repeat, op_key, transition
from flowfabric.errors import Bug
from tests.unit.core.plans import RULES, narrows
from tests.unit.core.records import (
    EXECUTION,
    FENCE,
    NOW,
    RETENTION_MS,
    SITUATIONS,
    Situation,
    changed,
    record_in,
)
from tests.unit.core.rows import FakeRows

_GRANT: Final[dict[str, Any]] = {
    "grant_id": "grant-1",
    "grant_kind": "claim",
    "grant_worker": "pool",
    "grant_instance": "pool-1",
    "grant_until": NOW + 2_000,
    "grant_note": "audit",
}


def full_record(situation: Situation, **fields: Any) -> Record:
    """A record on which everything is set that its state can hold."""
    held: dict[str, Any] = {"deadline_at": NOW + 90_000, "attempt_timeout_ms": 9_000}
    if situation.state in CLAIMABLE:
        held |= _GRANT
    if situation.state in LIVE:
        held["pending_until"] = NOW + 80_000
    if situation.state == "active":
        held["attempt_until"] = NOW + 4_000
    if situation.state == "blocked":
        held["wake_at"] = NOW + 20_000
    return record_in(situation, **(held | fields))


def is_cleared(record: Record, *names: str) -> bool:
    empty = Record(execution_id="", namespace="", lane="")
    return all(getattr(record, name) == getattr(empty, name) for name in names)


def _expected(name: str, situation: Situation) -> bool:
    rule = RULES[name]
    return situation.state in rule.states.split() and narrows(name, situation.reason)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_let_through_in_its_states_only(name: str) -> None:
    for situation in SITUATIONS:
        record = full_record(situation, policy=RULES[name].policy)
        plan = RULES[name].make(record)
        check_plan(plan)
        target = plan.set.get("state", record.state)
        let_through = guard_holds(plan.guard, record, NOW) and is_move(
            plan.rule, record.state, target
        )
        assert let_through == _expected(name, situation), situation
        if guard_holds(plan.guard, record, NOW) and not let_through:
            assert RULES[name].decided
            with pytest.raises(Bug, match="is not a move"):
                apply(FakeRows(NOW, record), plan)


@pytest.mark.parametrize("name", RULES)
def test_a_record_is_whole_after_every_rule(name: str) -> None:
    for situation in SITUATIONS:
        if not _expected(name, situation):
            continue
        before = full_record(situation, policy=RULES[name].policy)
        plan = RULES[name].make(before)
        done = transition(before, plan, NOW)
        after = done.after
        assert done.before is before
        assert is_legal(after)
        assert is_move(plan.rule, before.state, after.state)
        _assert_written(before, after)
        _assert_cleared(after)
        _assert_attempt(done.ended is not None, before, after)


def _assert_written(before: Record, after: Record) -> None:
    moved = after.state != before.state
    assert after.version == before.version + 1
    assert after.changed_at == NOW
    assert after.moved_at == (NOW if moved else before.moved_at)
    assert after.due_at == due_at_of(after)
    assert after.rank == rank_of(after.priority, after.created_at, after.rank_shift)
    for name in ("execution_id", "created_at", "lease_epoch", "attempt_count", "attempt_index"):
        assert getattr(after, name) == getattr(before, name)


def _assert_cleared(after: Record) -> None:
    if after.state not in HELD:
        assert is_cleared(after, *LEASE_FIELDS)
    if after.state != "active":
        assert after.attempt_until == 0
    if after.state != "suspended":
        assert is_cleared(after, *SUSPENSION_FIELDS)
    if after.state not in CLAIMABLE:
        assert is_cleared(after, *GRANT_FIELDS)
    if after.state not in ("delayed", "blocked", "suspended"):
        assert after.wake_at == 0
    if after.state in FINAL:
        assert after.completed_at
        assert after.purge_at == after.completed_at + RETENTION_MS
        assert (after.pending_until, after.due_at) == (0, 0)
        assert after.deadline_at, "a replay counts the deadline again if it still lies ahead"
    else:
        assert (after.completed_at, after.purge_at) == (0, 0)


def _assert_attempt(has_ended: bool, before: Record, after: Record) -> None:
    assert has_ended == (before.attempt is not None and after.attempt is None)
    if after.state in FINAL:
        assert after.attempt is None
    if after.state in ("active", "lost", "suspended") or after.next == "resume":
        assert after.state in FINAL or after.attempt is not None
    if after.next == "retry" and before.next != "retry" and after.state not in FINAL:
        assert after.attempt_id == "", "that the id is gone proves the retry"
    else:
        assert after.attempt_id == before.attempt_id


@pytest.mark.parametrize("target", ["waiting", "delayed", "blocked", "lost"])
def test_a_reason_and_a_detail_do_not_outlive_their_state(target: State) -> None:
    before = record_in("suspended", detail="old words")
    plan = Plan(target=EXECUTION, rule="resume", guard=at_version(before), set={"state": target})
    after = transition(before, plan, NOW).after
    assert (after.reason, after.detail) == ("", "")


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_a_write_that_stays_in_a_state_clears_nothing(situation: Situation) -> None:
    before = full_record(situation, detail="words")
    after = transition(before, note(EXECUTION, "last_capability_mismatch_at"), NOW).after
    expected = changed(
        before,
        last_capability_mismatch_at=NOW,
        version=before.version + 1,
        changed_at=NOW,
    )
    assert after == expected


def test_a_delay_is_remembered_while_dependencies_block() -> None:
    before = record_in(Situation("delayed", "delay", "first"), wake_at=NOW + 500)
    plan = Plan(
        target=EXECUTION,
        rule="await_edge",
        guard=at_version(before),
        set={"state": "blocked", "reason": "dependencies"},
    )
    assert transition(before, plan, NOW).after.wake_at == NOW + 500


@pytest.mark.parametrize(
    ("timer", "field", "value"),
    [
        (Timer(lease_for=5), "lease_until", NOW + 5),
        (Timer(attempt_for=5), "attempt_until", NOW + 5),
        (Timer(wake_in=0), "wake_at", NOW),
        (Timer(deadline_in=5), "deadline_at", NOW + 5),
        (Timer(pending_in=5), "pending_until", NOW + 5),
        (Timer(grant_for=5), "grant_until", NOW + 5),
        (Timer(wake_at=123), "wake_at", 123),
        (Timer(deadline_at=456), "deadline_at", 456),
        (Timer(wake_at=0), "wake_at", 1),
        (Timer(deadline_at=0), "deadline_at", 1),
    ],
)
def test_a_timer_is_a_duration_from_now_or_the_instant_somebody_named(
    timer: Timer, field: str, value: int
) -> None:
    before = record_in("active")
    plan = Plan(target=EXECUTION, rule="renew", guard=Guard(frozenset({"active"})), timer=timer)
    assert getattr(transition(before, plan, NOW).after, field) == value


@pytest.mark.parametrize("priority", [-5, 0, 42, 9_000, 9_001])
def test_the_place_in_the_queue_follows_the_priority_at_once(priority: int) -> None:
    before = record_in("waiting")
    after = transition(before, change_priority(before, priority), NOW).after
    clamped = min(max(priority, 0), 9_000)
    assert after.priority == clamped
    assert after.rank == before.created_at + before.rank_shift - clamped * 10**12


# ---- guards


@pytest.mark.parametrize(
    ("field", "value"), [("lease_id", "lease-2"), ("lease_epoch", 5), ("attempt_id", "attempt-2")]
)
def test_every_part_of_the_fence_is_compared(field: str, value: object) -> None:
    record = record_in("active")
    parts = {"lease_id": "lease-1", "lease_epoch": 4, "attempt_id": "attempt-1"}
    stale = Fence(**(parts | {field: value}))  # type: ignore[arg-type]
    assert guard_holds(renew(EXECUTION, FENCE, 1).guard, record, NOW)
    assert not guard_holds(renew(EXECUTION, stale, 1).guard, record, NOW)


def test_a_lease_ends_at_its_instant_and_not_after() -> None:
    record = record_in("active", lease_until=NOW)
    assert guard_holds(renew(EXECUTION, FENCE, 1).guard, record, NOW - 1)
    assert not guard_holds(renew(EXECUTION, FENCE, 1).guard, record, NOW)


@pytest.mark.parametrize(
    ("guard", "let_through"),
    [
        (Guard(frozenset({"suspended"})), True),
        (Guard(frozenset({"suspended/signal"})), True),
        (Guard(frozenset({"suspended/approval"})), False),
        (Guard(frozenset({"waiting", "suspended/signal"})), True),
        (Guard(frozenset({"active"})), False),
        (Guard(frozenset({"suspended"}), version=7), True),
        (Guard(frozenset({"suspended"}), version=8), False),
        (Guard(frozenset({"suspended"}), suspension_id="suspension-1"), True),
        (Guard(frozenset({"suspended"}), suspension_id="suspension-2"), False),
    ],
)
def test_a_guard_checks_what_it_names(guard: Guard, let_through: bool) -> None:
    plan = Plan(target=EXECUTION, rule="signal", guard=guard)
    assert guard_holds(plan.guard, record_in("suspended"), NOW) == let_through


def test_a_plan_under_a_reservation_fits_that_reservation_only() -> None:
    plan = block(EXECUTION, Block("quota", look_in_ms=1), grant_id="grant-1")
    assert guard_holds(plan.guard, record_in("waiting", **_GRANT), NOW)
    assert not guard_holds(plan.guard, record_in("waiting"), NOW)
    assert not guard_holds(
        plan.guard, record_in("waiting", **(_GRANT | {"grant_id": "grant-2"})), NOW
    )


# ---- operation ids


def test_a_fenced_plan_leaves_its_operation_and_what_it_made_of_the_record() -> None:
    plan = delay(EXECUTION, FENCE, Timer(wake_in=900), "op-1")
    after = transition(record_in("active"), plan, NOW).after
    assert (after.op_id, after.op_state, after.op_wake_at) == (
        "lease-1:op-1",
        "delayed",
        NOW + 900,
    )
    assert is_repeat(plan, after)


def test_renewals_and_progress_leave_the_stored_operation_alone() -> None:
    before = record_in("active", op_id="lease-0:op-9", op_state="delayed", op_wake_at=5)
    for plan in (renew(EXECUTION, FENCE, 1_000), progress(EXECUTION, FENCE, 1, None)):
        after = transition(before, plan, NOW).after
        assert (after.op_id, after.op_state, after.op_wake_at) == ("lease-0:op-9", "delayed", 5)


def test_the_same_operation_under_a_later_lease_is_another_one() -> None:
    plan = complete(EXECUTION, FENCE, None, "", "op-1")
    after = transition(record_in("active"), plan, NOW).after
    later = complete(EXECUTION, Fence("lease-2", 5, "attempt-2"), None, "", "op-1")
    assert not is_repeat(later, after)
    assert not is_repeat(complete(EXECUTION, FENCE, None, "", "op-2"), after)


def test_a_plan_without_an_operation_is_never_a_repeat() -> None:
    assert op_key(renew(EXECUTION, FENCE, 1)) == ""
    assert not is_repeat(renew(EXECUTION, FENCE, 1), record_in("active"))
    blind = block(EXECUTION, Block("operator"))
    assert not is_repeat(blind, record_in("waiting"))
