"""An execution whose handler does not make the recorded calls waits for a person."""

import pytest

from flowfabric.core.rules.signals import Accepted
from flowfabric.errors import ExecutionNotActive, InvalidInput, StaleLease
from flowfabric.operations.events import EventQuery, LeaseEvent, OperatorEvent
from flowfabric.operations.signals import Mail
from flowfabric.operations.workers import Claim, Finished, Park, Resumption
from tests.conformance.driver import RETRIES, Driver
from tests.conformance.waiting import pause
from tests.conformance.worker_calls import calls_on, claimed, finish

DETAIL = "step 'pay' (use 1): recorded pay(1), now pay(2)"


async def parked(driver: Driver, **fields: object) -> Claim:
    await driver.submit(**fields)
    claim = await claimed(driver.engine)
    (done,) = (await calls_on(driver.engine).finish([finish(claim, Park(DETAIL))])).items
    assert done == Finished(state="suspended")
    return claim


async def test_it_is_suspended_for_an_operator_and_spends_no_retry(driver: Driver) -> None:
    claim = await parked(driver, policy=RETRIES)
    record = await driver.record(claim.execution_id)
    assert (record.state, record.reason, record.detail) == ("suspended", "nondeterminism", DETAIL)
    assert (record.retry_count, record.wake_at, record.lease_id) == (0, 0, "")
    (attempt,) = await driver.attempts(claim.execution_id)
    assert (attempt.state, attempt.ended_at) == ("suspended", 0)
    (blocker,) = (await driver.engine.explanations.explain(claim.execution_id)).blockers
    assert blocker.code == "suspended"
    assert DETAIL in blocker.detail
    driver.clock.advance(10 * 86_400_000)
    assert await driver.claim_all() == []
    assert (await driver.record(claim.execution_id)).state == "suspended"


async def test_a_resume_enters_the_same_attempt_again(driver: Driver) -> None:
    claim = await parked(driver)
    await driver.engine.operators.resume(claim.execution_id)
    again = await claimed(driver.engine)
    assert (again.attempt_id, again.attempt_type) == (claim.attempt_id, "resumed")
    assert again.lease_epoch == claim.lease_epoch + 1


async def test_it_may_be_cancelled_and_its_deadline_counts(driver: Driver) -> None:
    claim = await parked(driver)
    await driver.engine.outcomes.cancel_execution(claim.execution_id, "enough")
    assert (await driver.record(claim.execution_id)).state == "cancelled"
    policy = {"timeout_policy": {"execution_deadline_ms": 60_000}}
    late = await parked(driver, policy=policy)
    driver.clock.advance(60_001)
    await driver.sweep()
    assert (await driver.record(late.execution_id)).state == "expired"


async def test_operators_and_followers_of_leases_are_told(driver: Driver) -> None:
    claim = await parked(driver)
    asked = EventQuery(families="operator,lease", cursor="oldest")
    events = (await driver.engine.events.read_events(asked)).items
    (told,) = [one for one in events if isinstance(one, OperatorEvent)]
    assert (told.execution_id, told.event_type) == (claim.execution_id, "parked")
    assert told.details == {"reason": "nondeterminism", "detail": DETAIL}
    (released,) = [one for one in events if isinstance(one, LeaseEvent) and one.kind == "released"]
    assert (released.lease_id, released.reason) == (claim.lease_id, "suspend")


async def test_the_signal_that_had_come_before_is_still_there(driver: Driver) -> None:
    """The handler was resumed by a signal, and parked before it could record that."""
    waiting = await pause(driver)
    await waiting.signal()
    claim = await claimed(driver.engine)
    assert isinstance(claim.resumed_by, Resumption)
    await calls_on(driver.engine).finish([finish(claim, Park(DETAIL))])
    await driver.engine.operators.resume(claim.execution_id)
    await claimed(driver.engine)
    found = await driver.engine.signals.resume_signals(claim.execution_id)
    assert (found.resumed_by, found.suspension_id) == ("signal", claim.resumed_by.suspension_id)
    assert len(found.signals) == 1


async def test_only_the_holder_parks(driver: Driver) -> None:
    claim = await parked(driver)
    stale = finish(claim, Park(DETAIL), op="late")
    (refusal,) = (await calls_on(driver.engine).finish([stale])).items
    assert isinstance(refusal, ExecutionNotActive | StaleLease)


@pytest.mark.parametrize("detail", ["", "x" * 4097])
async def test_a_detail_has_a_length(driver: Driver, detail: str) -> None:
    await driver.submit()
    claim = await claimed(driver.engine)
    (refusal,) = (await calls_on(driver.engine).finish([finish(claim, Park(detail))])).items
    assert isinstance(refusal, InvalidInput)


async def test_its_mailbox_is_open(driver: Driver) -> None:
    claim = await parked(driver)
    sent = await driver.engine.mailboxes.signal_by_name(claim.execution_id, "go", Mail())
    assert isinstance(sent, Accepted)
    assert sent.effect == "kept_in_mailbox"
    assert (await driver.record(claim.execution_id)).state == "suspended"
