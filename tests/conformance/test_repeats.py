"""Repeats of calls whose answer was lost: the same answer, and nothing done twice."""

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from flowfabric.engine.attempts.outcomes import Done
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import ExecutionNotActive, FlowFabricError, LeaseRevoked, StaleLease
from tests.conformance.driver import (
    PERMANENT,
    RETRIES,
    TRANSIENT,
    Driver,
    fenced,
    refused,
    unfenced,
)

Call = Callable[[Driver, LeaseProof, str], Awaitable[Done]]
DELAY_UNTIL = 1_700_000_090_000


async def _complete(driver: Driver, held: LeaseProof, op: str) -> Done:
    return await driver.engine.outcomes.complete(held, b"result", op=op)


async def _fail(driver: Driver, held: LeaseProof, op: str) -> Done:
    return await driver.engine.outcomes.fail(held, TRANSIENT, op=op)


async def _fail_for_good(driver: Driver, held: LeaseProof, op: str) -> Done:
    return await driver.engine.outcomes.fail(held, PERMANENT, op=op)


async def _delay(driver: Driver, held: LeaseProof, op: str) -> Done:
    return await driver.engine.outcomes.delay(held, until=DELAY_UNTIL, op=op)


async def _delay_for(driver: Driver, held: LeaseProof, op: str) -> Done:
    return await driver.engine.outcomes.delay(held, for_ms=90_000, op=op)


async def _hand_back(driver: Driver, held: LeaseProof, op: str) -> Done:
    return await driver.engine.outcomes.delay(held, for_ms=0, op=op)


async def _park(driver: Driver, held: LeaseProof, op: str) -> Done:
    return await driver.engine.outcomes.wait_for_children(held, op=op)


async def _cancel(driver: Driver, held: LeaseProof, op: str) -> Done:
    holder = msgspec.structs.replace(held, source="lease_holder")
    return await driver.engine.outcomes.cancel(holder, "enough")


CALLS: dict[str, Call] = {
    "complete": _complete,
    "fail": _fail,
    "fail_for_good": _fail_for_good,
    "delay": _delay,
    "delay_for": _delay_for,
    "hand_back": _hand_back,
    "park": _park,
    "cancel": _cancel,
}
every_call = pytest.mark.parametrize("call", CALLS)


@pytest.mark.parametrize("known", [True, False], ids=["same process", "another process"])
async def test_a_failure_told_otherwise_the_second_time_is_answered_like_the_first(
    driver: Driver, known: bool
) -> None:
    held = await driver.reach("active", policy=RETRIES)
    first = await driver.engine.outcomes.fail(held, TRANSIENT)
    again = await driver.engine.outcomes.fail(held if known else fenced(held), PERMANENT)
    assert again.replayed
    assert (again.public_state, again.delay_until) == ("delayed", first.delay_until)
    assert again.next_attempt_index == first.next_attempt_index == 1


@pytest.mark.parametrize("known", [True, False], ids=["same process", "another process"])
@every_call
async def test_a_repeat_is_answered_like_the_first_call(
    driver: Driver, call: str, known: bool
) -> None:
    held = await driver.reach("active", policy=RETRIES)
    repeated = held if known else fenced(held)
    first = await CALLS[call](driver, held, "once")
    before = await driver.snapshot()
    driver.clock.advance(3)
    again = await CALLS[call](driver, repeated, "once")
    assert again.replayed
    assert (again.public_state, again.delay_until) == (first.public_state, first.delay_until)
    assert again.next_attempt_index == first.next_attempt_index
    assert await driver.snapshot() == before


@every_call
async def test_the_operation_itself_is_the_id_when_none_is_given(driver: Driver, call: str) -> None:
    held = await driver.reach("active", policy=RETRIES)
    first = await CALLS[call](driver, held, "")
    again = await CALLS[call](driver, held, "")
    assert (first.replayed, again.replayed) == (False, True)
    assert again.public_state == first.public_state


@every_call
async def test_a_repeat_is_recognised_after_others_went_on_with_the_work(
    driver: Driver, call: str
) -> None:
    """Claims leave the operation id alone, so that a late repeat still meets its own."""
    held = await driver.reach("active", policy=RETRIES)
    first = await CALLS[call](driver, held, "once")
    await driver.pass_time(90_000)
    await driver.claim_all()
    before = await driver.snapshot()
    again = await CALLS[call](driver, held, "once")
    assert (again.replayed, again.public_state) == (True, first.public_state)
    assert again.delay_until == first.delay_until
    assert await driver.snapshot() == before


async def test_an_operation_id_belongs_to_its_lease(driver: Driver) -> None:
    first = await driver.reach("active")
    await driver.engine.outcomes.delay(first, for_ms=0, op="step-1")
    second = (await driver.claim()).proof
    done = await driver.engine.outcomes.delay(second, for_ms=0, op="step-1")
    assert not done.replayed
    assert (await driver.record(first.execution_id)).lease_epoch == 2


async def test_renewals_and_progress_leave_the_operation_id_alone(driver: Driver) -> None:
    held = await driver.reach("active")
    await driver.engine.outcomes.delay(held, for_ms=0, op="step-1")
    second = (await driver.claim()).proof
    await driver.engine.leases.renew(second, 9_000)
    await driver.engine.leases.progress(second, 5)
    again = await driver.engine.outcomes.delay(held, for_ms=0, op="step-1")
    assert again.replayed


# Repeats whose operation id the store does not know any more: what the record proves.
PROVEN = ["complete", "fail", "fail_for_good", "delay", "hand_back", "park"]


@pytest.mark.parametrize("call", PROVEN)
async def test_a_repeat_without_its_id_is_proven_by_the_record(driver: Driver, call: str) -> None:
    held = await driver.reach("active", policy=RETRIES)
    first = await CALLS[call](driver, held, "one")
    before = await driver.snapshot()
    again = await CALLS[call](driver, held, "two")
    assert again.replayed
    assert (again.public_state, again.delay_until) == (first.public_state, first.delay_until)
    assert await driver.snapshot() == before


async def test_a_delay_to_another_instant_is_no_repeat(driver: Driver) -> None:
    held = await driver.reach("active")
    await driver.engine.outcomes.delay(held, until=DELAY_UNTIL, op="one")
    with refused(ExecutionNotActive):
        await driver.engine.outcomes.delay(held, until=DELAY_UNTIL + 1, op="two")
    with refused(ExecutionNotActive):
        await driver.engine.outcomes.delay(held, for_ms=90_000, op="two")


CONTRADICTED: list[tuple[str, str, type[FlowFabricError]]] = [
    ("completed", "fail", ExecutionNotActive),
    ("completed", "delay", ExecutionNotActive),
    ("completed", "park", ExecutionNotActive),
    ("completed", "cancel", ExecutionNotActive),
    ("failed", "complete", ExecutionNotActive),
    ("cancelled", "complete", ExecutionNotActive),
    ("cancelled", "fail", ExecutionNotActive),
    ("expired", "complete", ExecutionNotActive),
    ("expired", "fail", ExecutionNotActive),
    ("suspended", "complete", ExecutionNotActive),
    ("suspended", "fail", ExecutionNotActive),
    ("suspended", "delay", ExecutionNotActive),
    ("backoff", "complete", ExecutionNotActive),
    ("backoff", "delay", ExecutionNotActive),
    ("backoff", "park", ExecutionNotActive),
    ("paused", "complete", ExecutionNotActive),
    ("paused", "fail", ExecutionNotActive),
    ("lease_revoked", "complete", LeaseRevoked),
]


@pytest.mark.parametrize(("situation", "call", "error"), CONTRADICTED)
async def test_what_really_happened_surfaces_unchanged(
    driver: Driver, situation: str, call: str, error: type[FlowFabricError]
) -> None:
    held = await driver.reach(situation)
    before = await driver.snapshot()
    with refused(error):
        await CALLS[call](driver, held, "mine")
    assert await driver.snapshot() == before


async def test_a_cancel_by_another_hand_satisfies_the_holder_s(driver: Driver) -> None:
    held = await driver.reach("cancelled")
    done = await _cancel(driver, held, "")
    assert (done.public_state, done.replayed) == ("cancelled", True)


@every_call
async def test_a_repeat_after_another_reclaimed_is_stale(driver: Driver, call: str) -> None:
    held = await driver.reach("lease_expired", policy=RETRIES)
    await driver.claim()
    with refused(StaleLease):
        await CALLS[call](driver, held, "mine")


async def test_an_operator_s_cancel_may_be_repeated(driver: Driver) -> None:
    held = await driver.reach("active")
    first = await driver.engine.outcomes.cancel(unfenced(held.execution_id), "enough")
    again = await driver.engine.outcomes.cancel(unfenced(held.execution_id), "more")
    assert (first.was, first.replayed) == ("active", False)
    assert (again.was, again.replayed) == ("cancelled", True)
    assert (await driver.record(held.execution_id)).cancellation_reason == "enough"
