"""Cancelling: from every state, by everybody who may."""

from typing import Any

import pytest

from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotFound,
    FenceRequired,
    FlowFabricError,
    InvalidInput,
    LeaseExpired,
    LeaseRevoked,
    PartialFenceTriple,
)
from flowfabric.operations.executions import Executions, GrantOrder
from tests.conformance.driver import (
    FINAL,
    HELD,
    LIVE,
    NOWHERE,
    RUNNABLE,
    Driver,
    fenced,
    guess,
    refused,
    unfenced,
)
from tests.proofs import proves

PRIVILEGED = ("", "operator_override", "flow_cascade", "system_timeout")
UNPRIVILEGED = ("lease_holder", "worker", "custom")


@proves(Executions.cancel)
@pytest.mark.parametrize("source", PRIVILEGED)
@pytest.mark.parametrize("situation", LIVE)
async def test_the_privileged_cancel_from_every_live_state(
    driver: Driver, situation: str, source: str
) -> None:
    held = await driver.reach(situation)
    before = await driver.record(held.execution_id)
    done = await driver.engine.outcomes.cancel(unfenced(held.execution_id, source), "enough")
    assert (done.public_state, done.was) == ("cancelled", before.state)
    await driver.assert_final(held, "cancelled", "cancelled")
    record = await driver.record(held.execution_id)
    assert record.cancellation_reason == "enough"
    assert record.cancelled_by == (source or "operator_override")
    assert record.next == before.next
    for attempt in await driver.attempts(held.execution_id):
        ended = before.attempt is not None
        assert attempt.state == ("ended_cancelled" if ended else "ended_failure")
        if ended:
            assert attempt.failure_reason == "cancelled: enough"
            assert attempt.closed_reason == "attempt_cancelled"


@pytest.mark.parametrize("source", UNPRIVILEGED)
@pytest.mark.parametrize("situation", [*RUNNABLE, "suspended"])
async def test_anybody_cancels_what_nobody_holds(
    driver: Driver, situation: str, source: str
) -> None:
    held = await driver.reach(situation)
    done = await driver.engine.outcomes.cancel(unfenced(held.execution_id, source), "enough")
    record = await driver.record(held.execution_id)
    assert done.public_state == "cancelled"
    assert record.cancelled_by == ("lease_holder" if source == "worker" else source)


@pytest.mark.parametrize("source", UNPRIVILEGED)
async def test_a_holder_cancels_under_its_fence(driver: Driver, source: str) -> None:
    held = await driver.reach("active")
    done = await driver.engine.outcomes.cancel(fenced(held, source=source), "enough")
    assert (done.public_state, done.was) == ("cancelled", "active")


CANCELS: list[tuple[str, str, type[FlowFabricError]]] = [
    *((situation, "none", FenceRequired) for situation in HELD),
    *((situation, "half", PartialFenceTriple) for situation in LIVE if situation != "waiting"),
    *((situation, "whole", ExecutionNotActive) for situation in (*RUNNABLE, "suspended")),
    ("unmarked", "whole", LeaseExpired),
    ("lease_expired", "whole", LeaseExpired),
    ("lease_revoked", "whole", LeaseRevoked),
    *((situation, fence, ExecutionNotActive) for situation in FINAL for fence in ("none", "half")),
]


@pytest.mark.parametrize(("situation", "fence", "error"), CANCELS)
async def test_a_cancel_that_is_not_privileged_needs_the_right_fence(
    driver: Driver, situation: str, fence: str, error: type[FlowFabricError]
) -> None:
    held = await driver.reach(situation)
    if fence == "none":
        held = unfenced(held.execution_id)
    elif fence == "half":
        held = fenced(guess(held.execution_id), attempt_id="")
    elif not held.lease_id:
        held = guess(held.execution_id)
    before = await driver.snapshot()
    with refused(error):
        await driver.engine.outcomes.cancel(fenced(held, source="lease_holder"), "enough")
    assert await driver.snapshot() == before


@pytest.mark.parametrize("source", PRIVILEGED)
@pytest.mark.parametrize("situation", FINAL)
async def test_what_ended_is_not_cancelled_again(
    driver: Driver, situation: str, source: str
) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    again = unfenced(held.execution_id, source)
    if situation == "cancelled":
        done = await driver.engine.outcomes.cancel(again, "more")
        assert (done.public_state, done.replayed) == ("cancelled", True)
    else:
        with refused(ExecutionNotActive) as caught:
            await driver.engine.outcomes.cancel(again, "more")
        assert caught.value.details["lifecycle_phase"] == "terminal"
    assert await driver.snapshot() == before


async def test_a_grant_is_dropped_by_a_cancel(driver: Driver) -> None:
    execution_id = await driver.submit()
    order = GrantOrder(worker_id="pool", worker_instance_id="pool-1")
    await driver.engine.grants.issue(execution_id, order)
    await driver.engine.outcomes.cancel(unfenced(execution_id), "enough")
    record = await driver.record(execution_id)
    assert (record.grant_id, record.grant_worker, record.grant_until) == ("", "", 0)


@pytest.mark.parametrize(
    ("held", "reason", "error"),
    [
        (unfenced(NOWHERE), "r", ExecutionNotFound),
        (unfenced("nowhere"), "r", InvalidInput),
        (unfenced(NOWHERE), "x" * 4_097, InvalidInput),
        (unfenced(NOWHERE), None, InvalidInput),
        (fenced(guess(NOWHERE), lease_id="", source="lease_holder"), "r", ExecutionNotFound),
    ],
)
async def test_a_bad_cancel_is_refused(
    driver: Driver, held: LeaseProof, reason: Any, error: type[FlowFabricError]
) -> None:
    with refused(error):
        await driver.engine.outcomes.cancel(held, reason)
