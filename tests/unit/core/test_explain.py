"""Why a store refused: each rule, in each state, under each fence, has one right error."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from flowfabric.core.checks import explain
from flowfabric.core.facets import facets
from flowfabric.core.plan import Fence, Plan, Timer
from flowfabric.core.record import Record
from flowfabric.core.rules.attempts import Failure, complete, delay, fail, park, progress, renew
from flowfabric.core.rules.operators import Block, block, cancel, unblock
from flowfabric.core.states import FINAL, HELD
from flowfabric.core.transition import guard_holds
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotEligible,
    ExecutionNotFound,
    FenceRequired,
    FlowFabricError,
    LeaseExpired,
    LeaseRevoked,
    StaleLease,
)
from tests.unit.core.records import EXECUTION, FENCE, NOW, SITUATIONS, Situation, record_in

Refusal = type[FlowFabricError] | None

FENCED: Final[dict[str, Callable[[Fence], Plan]]] = {
    "renew": lambda fence: renew(EXECUTION, fence, 1_000),
    "progress": lambda fence: progress(EXECUTION, fence, 1, None),
    "complete": lambda fence: complete(EXECUTION, fence, None, "", "op"),
    "fail": lambda fence: fail(record_in("active"), fence, Failure("x", "y"), 0.5, "op"),
    "delay": lambda fence: delay(EXECUTION, fence, Timer(wake_in=1), "op"),
    "park": lambda fence: park(EXECUTION, fence, None, "op"),
    "cancel": lambda fence: cancel(EXECUTION, "why", "lease_holder", fence),
}
_ALIVE: Final = NOW + 10_000
# fence presented, end of the lease: what an active record answers
FENCES: Final[dict[str, tuple[Fence, int, Refusal]]] = {
    "the right fence": (FENCE, _ALIVE, None),
    "the right fence, a ms before the end": (FENCE, NOW + 1, None),
    "the right fence, too late": (FENCE, NOW, LeaseExpired),
    "another lease": (Fence("lease-0", 4, "attempt-1"), _ALIVE, StaleLease),
    "another epoch": (Fence("lease-1", 3, "attempt-1"), _ALIVE, StaleLease),
    "another attempt": (Fence("lease-1", 4, "attempt-0"), _ALIVE, StaleLease),
    "another lease, too late": (Fence("lease-0", 3, "attempt-0"), NOW, LeaseExpired),
}


def _refusal(situation: Situation, when_active: Refusal) -> Refusal:
    """The answer of a lease-bound rule, in the order of its checks."""
    if situation.state not in HELD:
        return ExecutionNotActive
    if situation.state == "lost":
        return LeaseRevoked if situation.reason == "lease_revoked" else LeaseExpired
    return when_active


def _lease_end(situation: Situation, until: int) -> dict[str, Any]:
    return {"lease_until": until} if situation.state == "active" else {}


@pytest.mark.parametrize("rule", FENCED)
@pytest.mark.parametrize("case", FENCES)
def test_a_lease_bound_call_is_told_the_first_thing_that_is_wrong(rule: str, case: str) -> None:
    fence, until, when_active = FENCES[case]
    plan = FENCED[rule](fence)
    for situation in SITUATIONS:
        seen = record_in(situation, **_lease_end(situation, until))
        refusal = explain(plan, seen, NOW)
        expected = _refusal(situation, when_active)
        assert type(refusal) is (expected or type(None)), situation
        assert (refusal is None) == guard_holds(plan.guard, seen, NOW), (
            "explained if and only if refused"
        )


@pytest.mark.parametrize(
    ("fence", "named"),
    [
        (Fence("lease-0", 3, "attempt-0"), "lease_id"),
        (Fence("lease-1", 3, "attempt-0"), "lease_epoch"),
        (Fence("lease-1", 4, "attempt-0"), "attempt_id"),
    ],
)
def test_a_stale_fence_is_told_by_its_first_wrong_part(fence: Fence, named: str) -> None:
    refusal = explain(renew(EXECUTION, fence, 1), record_in("active"), NOW)
    assert isinstance(refusal, StaleLease)
    assert refusal.detail.startswith(f"{named} is not")


@pytest.mark.parametrize(
    "situation", [each for each in SITUATIONS if each.state not in HELD], ids=str
)
def test_one_that_is_not_active_proves_what_became_of_it(situation: Situation) -> None:
    seen = record_in(situation)
    refusal = explain(complete(EXECUTION, FENCE, None, "", "op"), seen, NOW)
    assert refusal is not None
    vector = facets(seen)
    assert refusal.details == {
        "terminal_outcome": vector.terminal_outcome,
        "current_lease_epoch": seen.lease_epoch,
        "lifecycle_phase": vector.lifecycle_phase,
        "current_attempt_id": seen.attempt_id,
    }


PLANS: Final[dict[str, Plan]] = {
    **{rule: make(FENCE) for rule, make in FENCED.items()},
    "cancel by an operator": cancel(EXECUTION, "why", "operator_override", None),
    "block": block(EXECUTION, Block("operator")),
    "unblock": unblock(EXECUTION, frozenset({"operator"})),
}


@pytest.mark.parametrize("name", PLANS)
def test_a_record_that_is_not_there_was_not_found(name: str) -> None:
    refusal = explain(PLANS[name], None, NOW)
    assert type(refusal) is ExecutionNotFound
    assert refusal.detail == EXECUTION


def _explained(plan: Plan, seen: Record, expected: Refusal) -> None:
    refusal = explain(plan, seen, NOW)
    assert type(refusal) is (expected or type(None))
    assert (refusal is None) == guard_holds(plan.guard, seen, NOW)


@pytest.mark.parametrize("source", ["operator_override", "flow_cascade", "system_timeout"])
@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_a_privileged_cancel_fails_only_where_nothing_is_left_to_cancel(
    source: str, situation: Situation
) -> None:
    expected = ExecutionNotActive if situation.state in FINAL else None
    for until in (NOW - 1, NOW + 1):
        seen = record_in(situation, **_lease_end(situation, until))
        _explained(cancel(EXECUTION, "why", source, None), seen, expected)


@pytest.mark.parametrize("source", ["lease_holder", "dashboard"])
@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_any_other_cancel_needs_the_fence_while_the_execution_is_held(
    source: str, situation: Situation
) -> None:
    expected: Refusal = None
    if situation.state in FINAL:
        expected = ExecutionNotActive
    elif situation.state in HELD:
        expected = FenceRequired
    _explained(cancel(EXECUTION, "why", source, None), record_in(situation), expected)


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_only_waiting_work_is_blocked(situation: Situation) -> None:
    expected: Refusal = ExecutionNotEligible
    if situation.state in FINAL:
        expected = ExecutionNotActive
    elif situation.state == "waiting":
        expected = None
    for reason in ("budget", "quota", "concurrency", "route", "operator", "lane_state"):
        _explained(block(EXECUTION, Block(reason)), record_in(situation), expected)


_LIFTED: Final = frozenset({"budget", "quota", "concurrency", "route", "operator", "lane_state"})
EXPECTING: Final = [
    _LIFTED,
    frozenset({"quota", "concurrency"}),
    *(frozenset({reason}) for reason in sorted(_LIFTED)),
]


@pytest.mark.parametrize("reasons", EXPECTING, ids=lambda reasons: "+".join(sorted(reasons)))
def test_only_work_held_for_the_expected_reason_is_unblocked(reasons: frozenset[str]) -> None:
    for situation in SITUATIONS:
        held = situation.state == "blocked" and situation.reason in reasons
        expected = None if held else ExecutionNotEligible
        _explained(unblock(EXECUTION, reasons), record_in(situation), expected)


def test_a_plan_that_would_fit_by_now_lost_a_race() -> None:
    plan = block(EXECUTION, Block("quota"), grant_id="grant-1")
    assert not guard_holds(plan.guard, record_in("waiting"), NOW)
    assert explain(plan, record_in("waiting"), NOW) is None
