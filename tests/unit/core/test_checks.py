"""The order of checks of each operation on a record that exists."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from flowfabric.core.checks import (
    check_block,
    check_capable,
    check_claim,
    check_claim_resumed,
    check_grant,
    check_offer,
    check_override,
    check_priority,
    check_reclaim_offer,
    check_replay,
    check_unblock,
)
from flowfabric.core.plan import Fence
from flowfabric.core.record import Record
from flowfabric.core.states import FINAL, HELD
from flowfabric.errors import (
    CapabilityMismatch,
    ClaimGrantExpired,
    ExecutionNotActive,
    ExecutionNotEligible,
    ExecutionNotLeaseable,
    ExecutionNotReclaimable,
    ExecutionNotTerminal,
    FlowAlreadyTerminal,
    FlowFabricError,
    GrantAlreadyExists,
    InvalidBlockingReason,
    InvalidCapabilities,
    InvalidClaimGrant,
    LeaseExpired,
    LeaseRevoked,
    MaxReplaysExhausted,
    NoActiveLease,
    NotAResumedExecution,
    UseClaimResumedExecution,
)
from tests.unit.core.records import NOW, SITUATIONS, Situation, record_in

Refusal = type[FlowFabricError] | None
WORKER: Final = ("crew", "crew-9")
GRANTED: Final[dict[str, Any]] = {
    "grant_id": "grant-1",
    "grant_worker": "crew",
    "grant_instance": "crew-9",
    "grant_until": NOW + 1,
}


def refusal_of(check: Callable[..., object], *given: object, **named: object) -> Refusal:
    try:
        check(*given, **named)
    except FlowFabricError as refusal:
        return type(refusal)
    return None


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_an_override_acts_for_whoever_holds_the_live_lease(situation: Situation) -> None:
    record = record_in(situation)
    expected: Refusal = None
    if situation.state in FINAL:
        expected = ExecutionNotActive
    elif situation.state not in HELD:
        expected = NoActiveLease
    elif situation.state == "lost":
        revoked = situation.reason == "lease_revoked"
        expected = LeaseRevoked if revoked else LeaseExpired
    assert refusal_of(check_override, record, NOW) is expected


def test_an_override_takes_the_fence_from_the_record_and_an_expired_lease_still_counts() -> None:
    assert check_override(record_in("active"), NOW) == Fence("lease-1", 4, "attempt-1")
    assert refusal_of(check_override, record_in("active", lease_until=NOW), NOW) is LeaseExpired


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_the_state_is_checked_before_the_reason_to_block(situation: Situation) -> None:
    record = record_in(situation)
    expected: Refusal = ExecutionNotEligible
    if situation.state in FINAL:
        expected = ExecutionNotActive
    elif situation.state == "waiting":
        expected = InvalidBlockingReason
    assert refusal_of(check_block, record, "out_of_mood") is expected


@pytest.mark.parametrize(
    "reason",
    [
        "waiting_for_budget",
        "waiting_for_quota",
        "waiting_for_capable_worker",
        "paused_by_operator",
        "paused_by_policy",
    ],
)
def test_the_reasons_to_block_are_known_by_their_public_names(reason: str) -> None:
    assert refusal_of(check_block, record_in("waiting"), reason) is None


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_without_an_expected_reason_every_limit_and_hold_is_lifted(situation: Situation) -> None:
    lifted = situation.reason not in ("dependencies", "flow_cancel")
    expected = None if situation.state == "blocked" and lifted else ExecutionNotEligible
    assert refusal_of(check_unblock, record_in(situation)) is expected


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_only_runnable_work_has_a_place_in_a_queue(situation: Situation) -> None:
    runnable = situation.state in ("waiting", "delayed", "blocked")
    expected = None if runnable else ExecutionNotEligible
    assert refusal_of(check_priority, record_in(situation)) is expected


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_only_ended_and_parked_work_is_replayed_and_only_so_often(situation: Situation) -> None:
    ended = situation.state in FINAL or situation.reason == "nondeterminism"
    for policy, limit in (("", 10), ('{"max_replay_count":2}', 2), ('{"max_replay_count":0}', 0)):
        for count in (0, 1, 2, 9, 10):
            record = record_in(situation, policy=policy, replay_count=count)
            expected: Refusal = None
            if not ended:
                expected = ExecutionNotTerminal
            elif count >= limit:
                expected = MaxReplaysExhausted
            assert refusal_of(check_replay, record) is expected


# ---- issuing a grant


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
@pytest.mark.parametrize(
    ("check", "state", "elsewhere"),
    [
        (check_offer, "waiting", ExecutionNotEligible),
        (check_reclaim_offer, "lost", ExecutionNotReclaimable),
    ],
)
def test_a_grant_is_refused_for_state_then_reservation_then_cancelled_flow(
    situation: Situation,
    check: Callable[..., None],
    state: str,
    elsewhere: type[FlowFabricError],
) -> None:
    for until in (0, NOW, NOW + 1):
        for cancelled_by_flow in (False, True):
            record = record_in(situation, grant_until=until)
            expected: Refusal = None
            if situation.state != state:
                expected = elsewhere
            elif until > NOW:
                expected = GrantAlreadyExists
            elif cancelled_by_flow:
                expected = FlowAlreadyTerminal
            assert refusal_of(check, record, NOW, cancelled_by_flow=cancelled_by_flow) is expected


@pytest.mark.parametrize(
    ("required", "offered", "lacking"),
    [
        ((), (), None),
        ((), ("gpu",), None),
        (("gpu",), ("cuda", "gpu"), None),
        (("cuda", "gpu"), ("gpu",), "cuda"),
        (("b", "a"), (), "a,b"),
    ],
)
def test_missing_capabilities_are_listed_in_order(
    required: tuple[str, ...], offered: tuple[str, ...], lacking: str | None
) -> None:
    record = record_in("waiting", required_capabilities=required)
    if lacking is None:
        check_capable(record, offered)
        return
    with pytest.raises(CapabilityMismatch) as refusal:
        check_capable(record, offered)
    assert refusal.value.detail == lacking


def test_the_size_of_both_sides_is_checked_before_they_are_compared() -> None:
    many = tuple(f"t{i:03}" for i in range(257))
    with pytest.raises(InvalidCapabilities, match="required:too_many_tokens"):
        check_capable(record_in("waiting", required_capabilities=many), many)
    with pytest.raises(InvalidCapabilities, match="worker:too_many_tokens"):
        check_capable(record_in("waiting", required_capabilities=("gpu",)), many)


# ---- consuming a grant


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_a_new_attempt_begins_from_waiting_and_not_where_one_pauses(situation: Situation) -> None:
    expected: Refusal = None
    if situation.state != "waiting":
        expected = ExecutionNotLeaseable
    elif situation.next == "resume":
        expected = UseClaimResumedExecution
    assert refusal_of(check_claim, record_in(situation)) is expected


@pytest.mark.parametrize("situation", SITUATIONS, ids=str)
def test_a_paused_attempt_goes_on_from_waiting_only(situation: Situation) -> None:
    expected: Refusal = None
    if situation.state not in ("waiting", "delayed", "blocked"):
        expected = ExecutionNotLeaseable
    elif situation.next != "resume":
        expected = NotAResumedExecution
    elif situation.state != "waiting":
        expected = ExecutionNotLeaseable
    assert refusal_of(check_claim_resumed, record_in(situation)) is expected


@pytest.mark.parametrize(
    ("fields", "grant_id", "cancelled_by_flow", "expected"),
    [
        ({}, "grant-1", False, None),
        ({}, "grant-1", True, FlowAlreadyTerminal),
        ({}, "grant-2", True, InvalidClaimGrant),
        ({}, "", False, InvalidClaimGrant),
        ({"grant_worker": "pool"}, "grant-1", False, InvalidClaimGrant),
        ({"grant_instance": "crew-8"}, "grant-1", False, InvalidClaimGrant),
        ({"grant_worker": "pool", "grant_until": NOW}, "grant-1", False, InvalidClaimGrant),
        ({"grant_until": NOW}, "grant-1", True, ClaimGrantExpired),
        ({"grant_until": NOW - 1}, "grant-1", False, ClaimGrantExpired),
        (dict.fromkeys(GRANTED, "") | {"grant_until": 0}, "grant-1", False, InvalidClaimGrant),
        (dict.fromkeys(GRANTED, "") | {"grant_until": 0}, "", False, InvalidClaimGrant),
    ],
)
def test_a_grant_must_be_the_callers_then_alive_then_of_a_live_flow(
    fields: dict[str, Any], grant_id: str, cancelled_by_flow: bool, expected: Refusal
) -> None:
    record: Record = record_in("waiting", **(GRANTED | fields))
    assert (
        refusal_of(check_grant, record, grant_id, WORKER, NOW, cancelled_by_flow=cancelled_by_flow)
        is expected
    )
