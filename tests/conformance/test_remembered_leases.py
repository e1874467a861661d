"""Records of leases that an engine handed out: they save reads, and never decide who holds what."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from flowfabric.engine import Engine, engine_on
from flowfabric.engine.lease_proof import LeaseCache
from flowfabric.errors import LeaseExpired, StaleLease
from flowfabric.operations.workers import Claim, Complete, Fail, Finished
from tests.conformance.driver import RETRIES, Driver, stranger
from tests.conformance.limiting import Watched
from tests.conformance.worker_calls import calls_on, claimed, fence, finish

FAIL = Fail("flaky", "transient")


@pytest.fixture
def watched(driver: Driver) -> Watched:
    return Watched(driver.engine.deps.store.backend)


@pytest.fixture
async def first(watched: Watched) -> AsyncIterator[Engine]:
    """An engine beside the driver's, whose calls to the store are counted."""
    engine = engine_on(watched)
    yield engine
    await engine.close()


def asked(watched: Watched) -> list[str]:
    return [name for name in watched.calls if name != "config_get"]


async def test_a_failure_of_a_known_lease_needs_no_read(
    driver: Driver, watched: Watched, first: Engine
) -> None:
    await driver.submit(policy=RETRIES)
    item = finish(await claimed(first), FAIL)
    watched.calls.clear()
    (done,) = (await calls_on(first).finish([item])).items
    assert isinstance(done, Finished)
    assert (done.state, done.next_attempt_index) == ("delayed", 1)
    assert asked(watched) == ["apply"]


async def test_another_engine_reads_and_answers_the_same(
    driver: Driver, watched: Watched, first: Engine
) -> None:
    await driver.submit(policy=RETRIES)
    item = finish(await claimed(driver.engine), FAIL)
    (done,) = (await calls_on(first).finish([item])).items
    assert asked(watched) == ["read", "apply"]
    assert isinstance(done, Finished)
    assert (done.state, done.next_attempt_index) == ("delayed", 1)


@pytest.mark.parametrize("outcome", [Complete(b"late"), FAIL])
async def test_a_holder_whose_work_was_reclaimed_elsewhere_changes_nothing(
    driver: Driver, first: Engine, outcome: Complete | Fail
) -> None:
    own = await driver.submit(policy=RETRIES)
    lost = await claimed(first, lease_ms=1_000)
    driver.clock.advance(1_000)
    await driver.sweep()
    again = await claimed(driver.engine)
    assert (again.execution_id, again.attempt_type) == (own, "reclaim")
    before = await driver.record(own)
    (refusal,) = (await calls_on(first).finish([finish(lost, outcome)])).items
    assert isinstance(refusal, StaleLease)
    assert await driver.record(own) == before
    (done,) = (await calls_on(first).finish([finish(again)])).items
    assert done == Finished(state="completed")


async def test_a_lease_that_ran_out_is_not_kept_alive_by_being_known(
    driver: Driver, first: Engine
) -> None:
    await driver.submit()
    lost = await claimed(first, lease_ms=1_000)
    driver.clock.advance(1_000)
    (refusal,) = (await calls_on(first).finish([finish(lost)])).items
    assert isinstance(refusal, LeaseExpired)


@pytest.mark.parametrize("part", ["lease_epoch", "attempt_id"])
@pytest.mark.parametrize("outcome", [Complete(), FAIL])
async def test_a_known_lease_id_is_no_proof_by_itself(
    driver: Driver, first: Engine, part: str, outcome: Complete | Fail
) -> None:
    await driver.submit()
    claim = await claimed(first)
    wrong: dict[str, Any] = {part: 9 if part == "lease_epoch" else stranger()}
    (refusal,) = (await calls_on(first).finish([finish(claim, outcome, **wrong)])).items
    assert isinstance(refusal, StaleLease)
    assert (await driver.record(claim.execution_id)).state == "active"


async def test_a_known_lease_id_opens_no_other_execution(driver: Driver, first: Engine) -> None:
    await driver.submit()
    mine = await claimed(first)
    await driver.submit()
    other = await claimed(first)
    item = finish(mine, FAIL, execution_id=other.execution_id)
    (refusal,) = (await calls_on(first).finish([item])).items
    assert isinstance(refusal, StaleLease)
    assert (await driver.record(other.execution_id)).state == "active"


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_repeated_failure_is_told_of_the_retry_it_planned(
    driver: Driver, first: Engine, is_known: bool
) -> None:
    own = await driver.submit(policy=RETRIES)
    item = finish(await claimed(first), FAIL)
    await calls_on(first).finish([item])
    engine = first if is_known else driver.engine
    (again,) = (await calls_on(engine).finish([item])).items
    assert isinstance(again, Finished)
    assert (again.state, again.next_attempt_index, again.replayed) == ("delayed", 1, True)
    record = await driver.record(own)
    assert (record.retry_count, record.attempt_count) == (1, 1)


async def test_an_execution_that_joined_a_flow_meanwhile_moves_its_flow_on(
    driver: Driver, first: Engine
) -> None:
    own = await driver.submit()
    claim = await claimed(first)
    flow_id = await driver.engine.flows.children_flow(own)
    assert not claim.flow_id
    (done,) = (await calls_on(first).finish([finish(claim)])).items
    assert done == Finished(state="completed")
    await first.settling.drain()
    flow = await driver.engine.flow_reads.describe_flow(flow_id)
    assert flow.members["completed"] == 1


async def test_the_oldest_of_too_many_is_forgotten(driver: Driver) -> None:
    claims = [await _claim(driver) for _ in range(3)]
    records = [await driver.record(one.execution_id) for one in claims]
    leased = LeaseCache(most=2)
    for record in records:
        leased.remember(record)
    known = [leased.proof(finish(one)).record for one in claims]
    assert known == [None, *records[1:]]
    assert fence(claims[0])["lease_id"] == records[0].lease_id


async def test_what_was_ended_is_forgotten(driver: Driver) -> None:
    claim = await _claim(driver)
    record = await driver.record(claim.execution_id)
    leased = LeaseCache()
    leased.remember(record)
    assert leased.end(finish(claim)).record == record
    assert leased.proof(finish(claim)).record is None


async def _claim(driver: Driver) -> Claim:
    await driver.submit()
    return await claimed(driver.engine)
