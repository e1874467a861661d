"""The fence: every call of a lease holder, in every situation, with every kind of proof."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
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
    NoActiveLease,
    PartialFenceTriple,
    StaleLease,
)
from tests.conformance.driver import (
    FINAL,
    NOWHERE,
    PERMANENT,
    RUNNABLE,
    Driver,
    fenced,
    guess,
    refused,
    stranger,
    unfenced,
)

Operation = Callable[[Driver, LeaseProof], Awaitable[object]]


async def _complete(driver: Driver, held: LeaseProof) -> object:
    return await driver.engine.outcomes.complete(held, b"late")


async def _fail(driver: Driver, held: LeaseProof) -> object:
    return await driver.engine.outcomes.fail(held, PERMANENT)


async def _delay(driver: Driver, held: LeaseProof) -> object:
    return await driver.engine.outcomes.delay(held, for_ms=5_000)


async def _park(driver: Driver, held: LeaseProof) -> object:
    return await driver.engine.outcomes.wait_for_children(held)


async def _renew(driver: Driver, held: LeaseProof) -> object:
    return await driver.engine.leases.renew(held, 5_000)


async def _progress(driver: Driver, held: LeaseProof) -> object:
    await driver.engine.leases.progress(held, 50, "half")
    return None


async def _cancel(driver: Driver, held: LeaseProof) -> object:
    holder = msgspec.structs.replace(held, source="lease_holder")
    return await driver.engine.outcomes.cancel(holder, "enough")


PAUSING: dict[str, Operation] = {
    "complete": _complete,
    "fail": _fail,
    "delay": _delay,
    "park": _park,
}
KEEPING: dict[str, Operation] = {"renew": _renew, "progress": _progress}
OPERATIONS = {**PAUSING, **KEEPING, "cancel": _cancel}

every_operation = pytest.mark.parametrize("operation", OPERATIONS)


# ---- the fence, operation by operation


@every_operation
async def test_a_holder_s_fence_is_accepted(driver: Driver, operation: str) -> None:
    held = await driver.reach("active")
    await OPERATIONS[operation](driver, fenced(held))
    assert (await driver.record(held.execution_id)).version > 2


REFUSALS: list[tuple[str, type[FlowFabricError]]] = [
    *((situation, ExecutionNotActive) for situation in (*RUNNABLE, "suspended")),
    *((situation, ExecutionNotActive) for situation in FINAL),
    ("unmarked", LeaseExpired),
    ("lease_expired", LeaseExpired),
    ("lease_revoked", LeaseRevoked),
    ("active", StaleLease),
]


@pytest.mark.parametrize(("situation", "error"), REFUSALS)
@every_operation
async def test_a_stranger_s_fence_is_refused_by_the_state_first(
    driver: Driver, operation: str, situation: str, error: type[FlowFabricError]
) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    with refused(error):
        await OPERATIONS[operation](driver, guess(held.execution_id))
    assert await driver.snapshot() == before


@pytest.mark.parametrize("situation", ["unmarked", "lease_expired", "lease_revoked"])
@every_operation
async def test_a_lost_holder_is_told_what_happened_to_its_lease(
    driver: Driver, operation: str, situation: str
) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    with refused(LeaseRevoked if situation == "lease_revoked" else LeaseExpired):
        await OPERATIONS[operation](driver, held)
    assert await driver.snapshot() == before


@every_operation
async def test_a_holder_whose_work_another_took_over_is_stale(
    driver: Driver, operation: str
) -> None:
    old = await driver.reach("lease_expired")
    new = await driver.claim()
    before = await driver.snapshot()
    with refused(StaleLease):
        await OPERATIONS[operation](driver, old)
    assert await driver.snapshot() == before
    await driver.engine.outcomes.complete(new.proof)


@pytest.mark.parametrize(
    "changes",
    [{"lease_id": stranger()}, {"lease_epoch": 2}, {"attempt_id": stranger()}],
    ids=["lease_id", "lease_epoch", "attempt_id"],
)
@every_operation
async def test_every_part_of_the_fence_is_compared(
    driver: Driver, operation: str, changes: dict[str, Any]
) -> None:
    """An equal epoch with another lease id fails: one number can be given twice."""
    held = await driver.reach("active")
    before = await driver.snapshot()
    with refused(StaleLease):
        await OPERATIONS[operation](driver, fenced(held, **changes))
    assert await driver.snapshot() == before


@pytest.mark.parametrize("left", [1, 0, -1])
@every_operation
async def test_a_lease_ends_exactly_at_its_instant(
    driver: Driver, operation: str, left: int
) -> None:
    await driver.submit()
    held = (await driver.claim(lease_ms=1_000)).proof
    driver.clock.advance(1_000 - left)
    if left > 0:
        await OPERATIONS[operation](driver, held)
        assert (await driver.record(held.execution_id)).version > 2
        return
    with refused(LeaseExpired):
        await OPERATIONS[operation](driver, held)


@pytest.mark.parametrize(
    "changes",
    [
        {"lease_id": ""},
        {"lease_epoch": 0},
        {"attempt_id": ""},
        {"lease_id": "", "lease_epoch": 0},
        {"lease_id": "", "attempt_id": ""},
        {"lease_epoch": 0, "attempt_id": ""},
    ],
)
@every_operation
async def test_half_a_fence_is_refused(
    driver: Driver, operation: str, changes: dict[str, Any]
) -> None:
    held = await driver.reach("active")
    before = await driver.snapshot()
    with refused(PartialFenceTriple):
        await OPERATIONS[operation](driver, fenced(held, **changes))
    assert await driver.snapshot() == before


@every_operation
async def test_no_fence_is_refused(driver: Driver, operation: str) -> None:
    held = await driver.reach("active")
    before = await driver.snapshot()
    for source in ("", "lease_holder", "somebody"):
        with refused(FenceRequired):
            await OPERATIONS[operation](driver, unfenced(held.execution_id, source))
    assert await driver.snapshot() == before


@pytest.mark.parametrize("fence", ["whole", "half", "none"])
@every_operation
async def test_a_missing_execution_comes_before_the_fence(
    driver: Driver, operation: str, fence: str
) -> None:
    held = guess(NOWHERE)
    if fence == "half":
        held = fenced(held, lease_id="")
    if fence == "none":
        held = unfenced(NOWHERE)
    with refused(ExecutionNotFound):
        await OPERATIONS[operation](driver, held)


@every_operation
async def test_a_malformed_id_is_no_execution(driver: Driver, operation: str) -> None:
    for name in ("", "7", NOWHERE.upper(), "{fp:256}:" + stranger()):
        with refused(InvalidInput):
            await OPERATIONS[operation](driver, guess(name))


@pytest.mark.parametrize(
    "changes",
    [
        {"lease_epoch": True},
        {"lease_epoch": 1.0},
        {"lease_epoch": "1"},
        {"lease_epoch": -1},
        {"lease_id": 7},
        {"attempt_id": b"x"},
    ],
)
@every_operation
async def test_a_fence_of_other_types_is_no_fence(
    driver: Driver, operation: str, changes: dict[str, Any]
) -> None:
    held = await driver.reach("active")
    before = await driver.snapshot()
    with refused(InvalidInput):
        await OPERATIONS[operation](driver, fenced(held, **changes))
    assert await driver.snapshot() == before


# ---- an operator without a fence

OVERRIDES: list[tuple[str, type[FlowFabricError]]] = [
    *((situation, NoActiveLease) for situation in (*RUNNABLE, "suspended")),
    *((situation, ExecutionNotActive) for situation in FINAL),
    ("unmarked", LeaseExpired),
    ("lease_expired", LeaseExpired),
    ("lease_revoked", LeaseRevoked),
]


@pytest.mark.parametrize(("situation", "error"), OVERRIDES)
@pytest.mark.parametrize("operation", PAUSING)
async def test_an_override_needs_a_live_lease(
    driver: Driver, operation: str, situation: str, error: type[FlowFabricError]
) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    with refused(error):
        await PAUSING[operation](driver, unfenced(held.execution_id, "operator_override"))
    assert await driver.snapshot() == before


@pytest.mark.parametrize("operation", PAUSING)
async def test_an_override_acts_under_the_holder_s_lease(driver: Driver, operation: str) -> None:
    held = await driver.reach("active")
    await PAUSING[operation](driver, unfenced(held.execution_id, "operator_override"))
    record = await driver.record(held.execution_id)
    assert record.state in ("completed", "failed", "delayed", "waiting")
    assert (record.lease_id, record.lease_epoch) == ("", 1)


@pytest.mark.parametrize("operation", KEEPING)
async def test_a_lease_is_kept_only_by_its_holder(driver: Driver, operation: str) -> None:
    held = await driver.reach("active")
    with refused(FenceRequired):
        await KEEPING[operation](driver, unfenced(held.execution_id, "operator_override"))


async def test_the_refusal_of_an_ended_execution_tells_how_it_stands(driver: Driver) -> None:
    held = await driver.reach("cancelled")
    with refused(ExecutionNotActive) as caught:
        await driver.engine.outcomes.complete(held)
    assert caught.value.details == {
        "terminal_outcome": "cancelled",
        "current_lease_epoch": 1,
        "lifecycle_phase": "terminal",
        "current_attempt_id": held.attempt_id,
    }
