"""Approvals: a person decides without ever holding a token."""

from typing import Any

import pytest

from flowfabric.core.conditions import AnyOf, composite
from flowfabric.core.rules.signals import Accepted, Duplicate
from flowfabric.core.suspend_outcomes import Details
from flowfabric.errors import (
    ExecutionNotFound,
    InvalidInput,
    NoWaitpointToApprove,
    PayloadTooLarge,
    SignalLimitExceeded,
    TargetNotSignalable,
)
from flowfabric.operations.signals import DAY_MS, Signals
from tests.conformance.driver import NOWHERE, Driver, refused, stranger
from tests.conformance.waiting import Paused, count, on, pause, pending, signals
from tests.proofs import proves

SATISFIED = "resume_condition_satisfied"
DECISION = composite(
    AnyOf((count(2, "DistinctSources", "k", name="approved"), on("k", "rejected")))
)


async def asked(driver: Driver, **fields: Any) -> Paused:
    return await pause(driver, DECISION, reason_code="waiting_for_approval", **fields)


@proves(Signals.approve)
async def test_two_people_approve_and_one_counts_once(driver: Driver) -> None:
    paused = await asked(driver)
    first = await paused.approve(source_identity="ada", payload=b"fine")
    assert isinstance(first, Accepted)
    assert first.effect == "appended_to_waitpoint"
    assert await paused.approve(source_identity="ada") == Duplicate(first.signal_id)
    second = await paused.approve(source_identity="grace")
    assert second.effect == SATISFIED
    shown = (await driver.engine.signals.resume_signals(paused.execution_id, 0)).signals
    assert [one.source_identity for one in shown] == ["ada", "grace"]
    assert shown[0].payload == b"fine"


async def test_a_decision_is_stored_as_an_operators_signal(driver: Driver) -> None:
    paused = await asked(driver)
    await paused.approve("rejected", idempotency_key="ticket-7")
    (kept,) = await signals(driver, paused.execution_id)
    assert (kept.signal_category, kept.source_type, kept.target_scope) == (
        "approval",
        "operator",
        "execution",
    )
    assert kept.idempotency_key == "approval:rejected:ticket-7"
    assert kept.created_at == kept.accepted_at == driver.clock()
    assert await paused.state() == "waiting"


async def test_one_person_may_change_their_mind(driver: Driver) -> None:
    paused = await asked(driver)
    await paused.approve("approved")
    with refused(InvalidInput) as mismatch:
        await paused.approve(lane_id="elsewhere")
    assert mismatch.value.detail.startswith("lane_mismatch: ")
    assert (await paused.approve("rejected", lane_id="default")).effect == SATISFIED


async def test_a_repeat_is_answered_also_when_it_is_too_late(driver: Driver) -> None:
    paused = await asked(driver)
    first = await paused.approve("rejected", idempotency_key="once")
    again = await paused.approve("rejected", idempotency_key="once", source_identity="grace")
    assert again == Duplicate(first.signal_id)
    with refused(TargetNotSignalable):
        await paused.approve("rejected", source_identity="grace")


async def test_no_key_is_asked(driver: Driver) -> None:
    """A key that was rotated out meanwhile strands nobody."""
    paused = await asked(driver)
    await driver.engine.keys.rotate_waitpoint_hmac_secret("k2", "ab" * 32, 0)
    driver.clock.advance(1)
    assert (await paused.approve("rejected")).effect == SATISFIED


async def test_a_decision_may_come_before_the_wait(driver: Driver) -> None:
    claimed = await driver.started()
    early = await pending(driver, claimed.proof)
    waiting = Paused(driver, claimed, Details("", (early,)))
    assert (await waiting.approve()).effect == "buffered_for_pending_waitpoint"


async def test_what_is_wrong_is_told_in_order(driver: Driver) -> None:
    paused, other = await asked(driver), await asked(driver)
    with refused(ExecutionNotFound):
        await paused.approve(execution_id=NOWHERE, lane_id="elsewhere")
    for unknown in (stranger(), other.at().waitpoint_id):
        with refused(NoWaitpointToApprove) as caught:
            await paused.approve(waitpoint_id=unknown, lane_id="elsewhere")
        assert (caught.value.code, caught.value.status) == ("waitpoint_not_found", 404)
    assert (await paused.approve("rejected")).effect == SATISFIED


@pytest.mark.parametrize(
    "fields",
    [
        {"source_identity": ""},
        {"name": ""},
        {"name": "__reserved"},
        {"waitpoint_id": "nonsense"},
        {"execution_id": "nonsense"},
        {"signal_dedup_ttl_ms": -1},
        {"max_signals_per_execution": -1},
    ],
)
async def test_values_are_checked(driver: Driver, fields: dict[str, Any]) -> None:
    paused = await asked(driver)
    with refused(InvalidInput):
        await paused.approve(**fields)


async def test_limits_hold_for_people_too(driver: Driver) -> None:
    paused = await asked(driver)
    with refused(PayloadTooLarge):
        await paused.approve(payload=b"x" * 65_537)
    await paused.approve(source_identity="ada")
    with refused(SignalLimitExceeded):
        await paused.approve(source_identity="grace", max_signals_per_execution=1)


async def test_a_key_is_remembered_as_long_as_asked(driver: Driver) -> None:
    paused = await asked(driver)
    await paused.approve(signal_dedup_ttl_ms=1_000)
    driver.clock.advance(1_000)
    again = await paused.approve()
    assert again.effect == "appended_to_waitpoint_duplicate"


async def test_a_key_is_remembered_for_a_day(driver: Driver) -> None:
    paused = await asked(driver)
    first = await paused.approve()
    driver.clock.advance(DAY_MS - 1)
    assert await paused.approve() == Duplicate(first.signal_id)
    driver.clock.advance(1)
    again = await paused.approve()
    assert again.effect == "appended_to_waitpoint_duplicate"


async def test_every_delivery_is_audited_and_no_trace_has_a_token(
    driver: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    paused = await asked(driver)
    await paused.approve("rejected", source_identity="ada", payload=b"private words")
    (entry,) = [one for one in caplog.records if one.name == "flowfabric.audit"]
    message = entry.getMessage()
    assert message.startswith("approval_delivered ")
    for part in (paused.execution_id, paused.at().waitpoint_id, "rejected", "ada"):
        assert part in message
    assert paused.at().waitpoint_token.digest not in caplog.text
    assert "private words" not in caplog.text
