"""A call whose answer was lost: recognised by its operation id, or by what the record proves."""

from typing import Any, Final

import msgspec
import pytest

from flowfabric.core.apply import apply
from flowfabric.core.checks import proven_repeat
from flowfabric.core.plan import Applied, Fence, Plan, Refused, Timer
from flowfabric.core.rules.attempts import Failure, complete, delay, fail, park, renew
from flowfabric.core.rules.operators import cancel
from tests.unit.core.plans import RETRYING, RULES
from tests.unit.core.records import (
    EXECUTION,
    FENCE,
    NOW,
    SITUATIONS,
    Situation,
    changed,
    record_in,
)
from tests.unit.core.rows import FakeRows

_FAIL: Final = fail(record_in("active"), FENCE, Failure("it broke", "transient"), 0.5, "op")
PLANS: Final[dict[str, Plan]] = {
    "complete": complete(EXECUTION, FENCE, b"1", "", "op"),
    "cancel": cancel(EXECUTION, "why", "lease_holder", FENCE),
    "fail": _FAIL,
    "delay until": delay(EXECUTION, FENCE, Timer(wake_at=NOW + 20_000), "op"),
    "delay until later": delay(EXECUTION, FENCE, Timer(wake_at=NOW + 20_001), "op"),
    "delay for": delay(EXECUTION, FENCE, Timer(wake_in=20_000), "op"),
    "hand back": delay(EXECUTION, FENCE, Timer(wake_in=0), "op"),
    "park": park(EXECUTION, FENCE, None, "op"),
    "renew": renew(EXECUTION, FENCE, 1_000),
}
_RUNNABLE: Final = ("waiting", "delayed", "blocked")


def _mine(name: str, situation: Situation) -> bool:
    """Whether a record with my epoch and my attempt id proves that this call was applied."""
    match name:
        case "complete":
            return situation.state == "completed"
        case "cancel":
            return situation.state == "cancelled"
        case "fail":
            return situation.state == "failed"
        case "delay until":
            return situation.state in _RUNNABLE and record_in(situation).wake_at == NOW + 20_000
        case "hand back":
            return situation.state == "waiting"
        case "park":
            return situation.state in _RUNNABLE
        case _:
            return False


@pytest.mark.parametrize("name", PLANS)
def test_a_record_with_my_epoch_and_attempt_proves_my_own_call_only(name: str) -> None:
    for situation in SITUATIONS:
        seen = record_in(situation, lease_epoch=4, attempt_id="attempt-1")
        repeat = proven_repeat(PLANS[name], seen, NOW)
        assert (repeat is not None) == _mine(name, situation), situation
        if repeat is not None:
            assert repeat.replayed
            assert repeat.record is seen
            assert (repeat.brief.state, repeat.brief.wake_at) == (seen.state, seen.wake_at)
            assert (repeat.brief.version, repeat.now) == (seen.version, NOW)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("fields", [{"lease_epoch": 5}, {"attempt_id": "attempt-2"}])
def test_what_another_lease_or_attempt_did_proves_nothing(
    name: str, fields: dict[str, Any]
) -> None:
    for situation in SITUATIONS:
        seen = record_in(situation, **({"lease_epoch": 4, "attempt_id": "attempt-1"} | fields))
        assert proven_repeat(PLANS[name], seen, NOW) is None, situation


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_a_cleared_attempt_id_proves_that_my_failure_scheduled_a_retry(
    situation: Situation,
) -> None:
    seen = record_in(situation, lease_epoch=4, attempt_id="")
    repeat = proven_repeat(_FAIL, seen, NOW)
    assert (repeat is not None) == (situation.state in _RUNNABLE)
    others = {name: plan for name, plan in PLANS.items() if name != "fail"}
    for name, plan in others.items():
        assert proven_repeat(plan, seen, NOW) is None, name


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_a_call_without_a_fence_cannot_be_recognised(situation: Situation) -> None:
    blind = cancel(EXECUTION, "why", "operator_override", None)
    assert proven_repeat(blind, record_in(situation), NOW) is None


# ---- the operation id the store remembers

_FENCED: Final = [name for name, rule in RULES.items() if rule.make(record_in("active")).op]


def test_the_plans_that_end_or_pause_an_attempt_carry_an_operation_id() -> None:
    assert set(_FENCED) == {
        "complete",
        "fail for good",
        "fail and retry",
        "delay until",
        "delay for",
        "hand back",
        "park",
        "park on children",
        "restart",
        "cancel by its holder",
    }


@pytest.mark.parametrize("name", _FENCED)
def test_the_same_operation_twice_is_done_once_and_answered_alike(name: str) -> None:
    record = record_in("active", policy=RETRYING if "retry" in name else "")
    rows = FakeRows(NOW, record)
    plan = RULES[name].make(record)
    first = apply(rows, plan)
    written, logged = len(rows.writes), len(rows.entries)
    rows.now = NOW + 50
    second = apply(rows, plan)
    assert isinstance(first, Applied)
    assert isinstance(second, Applied)
    assert (first.replayed, second.replayed) == (False, True)
    assert (second.brief.state, second.brief.wake_at) == (first.brief.state, first.brief.wake_at)
    assert (len(rows.writes), len(rows.entries)) == (written, logged)


@pytest.mark.parametrize("name", _FENCED)
def test_an_operation_is_recognised_whatever_happened_since(name: str) -> None:
    record = record_in("active", policy=RETRYING if "retry" in name else "")
    rows = FakeRows(NOW, record)
    plan = RULES[name].make(record)
    first = apply(rows, plan)
    since = record_in(
        "cancelled",
        op_id=rows.records[EXECUTION].op_id,
        op_state=rows.records[EXECUTION].op_state,
        op_wake_at=rows.records[EXECUTION].op_wake_at,
    )
    rows.records[EXECUTION] = since
    again = apply(rows, plan)
    assert isinstance(first, Applied)
    assert isinstance(again, Applied)
    assert again.replayed
    assert (again.brief.state, again.brief.wake_at) == (first.brief.state, first.brief.wake_at)
    assert again.brief.version == since.version


def test_an_operation_text_used_again_under_another_lease_is_not_a_repeat() -> None:
    record = record_in("active")
    rows = FakeRows(NOW, record)
    apply(rows, complete(EXECUTION, FENCE, None, "", "op"))
    later = complete(EXECUTION, Fence("lease-2", 5, "attempt-2"), None, "", "op")
    assert isinstance(apply(rows, later), Refused)


def test_an_answer_with_the_whole_record_shows_it_as_it_is_now() -> None:
    plan = msgspec.structs.replace(complete(EXECUTION, FENCE, None, "", "op"), want="record")
    rows = FakeRows(NOW, record_in("active"))
    apply(rows, plan)
    rows.records[EXECUTION] = changed(rows.records[EXECUTION], version=99)
    again = apply(rows, plan)
    assert isinstance(again, Applied)
    assert again.record == rows.records[EXECUTION]
