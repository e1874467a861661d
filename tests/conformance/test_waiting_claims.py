"""Idle claims: they wait for a notification and are woken when there is something for them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.engine import engine_on
from flowfabric.engine.attempts import claims as claims_module
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.errors import TransportFault
from flowfabric.operations.executions import Submission
from flowfabric.operations.workers import ClaimOrder
from tests.conformance.driver import Driver
from tests.conformance.feeds import SOON_S
from tests.conformance.limiting import Watched

PATIENT_MS = 30_000
# More than a waiting claim asks for first.
MANY = 20


@pytest.fixture(autouse=True)
def no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a notification wakes a claim here."""
    monkeypatch.setattr(claims_module, "SAFETY_NET_S", 600.0)


def ids(claimed: list[Claimed]) -> list[str]:
    return [each.execution_id for each in claimed]


async def waiting_claim(driver: Driver, **fields: Any) -> asyncio.Task[list[Claimed]]:
    """A claim that found nothing and waits: it had time for more than two looks."""
    order = {"wait_ms": PATIENT_MS} | fields
    task = asyncio.create_task(driver.claim_all(**order))
    for _ in range(3):
        await driver.snapshot()
    assert not task.done()
    return task


async def within_reason(task: asyncio.Task[list[Claimed]]) -> list[Claimed]:
    async with asyncio.timeout(SOON_S):
        return await task


async def test_an_idle_claim_gets_work_as_soon_as_it_is_submitted(driver: Driver) -> None:
    task = await waiting_claim(driver)
    execution_id = await driver.submit()
    assert ids(await within_reason(task)) == [execution_id]


async def test_an_idle_claim_gets_work_that_becomes_claimable(driver: Driver) -> None:
    held = await driver.reach("blocked")
    task = await waiting_claim(driver)
    await driver.engine.scheduling.unblock(held.execution_id)
    assert ids(await within_reason(task)) == [held.execution_id]


async def test_an_idle_claim_gets_work_whose_lease_ran_out(driver: Driver) -> None:
    held = await driver.reach("unmarked")
    task = await waiting_claim(driver)
    await driver.sweep()
    assert ids(await within_reason(task)) == [held.execution_id]


async def test_one_ring_for_several_pieces_of_work_wakes_several_claims(driver: Driver) -> None:
    first = await waiting_claim(driver)
    second = await waiting_claim(driver, worker_instance_id="pool-2")
    sent = await asyncio.gather(driver.submit(), driver.submit())
    claimed = [*await within_reason(first), *await within_reason(second)]
    assert sorted(ids(claimed)) == sorted(sent)


async def test_an_idle_claim_gets_all_that_was_submitted_at_once(driver: Driver) -> None:
    task = await waiting_claim(driver, n=50)
    await driver.engine.executions.create_many([Submission(kind="k")] * MANY)
    assert len(await within_reason(task)) == MANY


async def test_what_an_idle_claim_got_first_survives_a_fault_behind_it(driver: Driver) -> None:
    """A claim is not lost because the store cannot be asked for the rest."""
    watched = Watched(driver.engine.deps.store.backend)
    looks: list[int] = []

    async def claim(found: Any, *given: Any) -> Any:
        if any(looks):
            raise TransportFault("gone")
        answers = await found(*given)
        looks.append(len(answers[0].offers))
        return answers

    watched.answers["claim"] = claim
    engine = engine_on(watched)
    order = ClaimOrder(
        worker_id="w", worker_instance_id="w-1", lanes=("default",), n=50, wait_ms=PATIENT_MS
    )
    task = asyncio.create_task(engine.claims.claim(order))
    while not looks:
        await driver.snapshot()
    await driver.engine.executions.create_many([Submission(kind="k")] * MANY)
    assert 0 < len(await within_reason(task)) < MANY
    await engine.close()


async def test_a_claim_cancelled_while_it_looks_hands_back_what_it_finds(driver: Driver) -> None:
    """However often it is told to go."""
    watched = Watched(driver.engine.deps.store.backend)
    has_leased, may_answer = asyncio.Event(), asyncio.Event()

    async def claim(found: Any, *given: Any) -> Any:
        answers = await found(*given)
        if answers[0].offers:
            has_leased.set()
            await may_answer.wait()
        return answers

    watched.answers["claim"] = claim
    engine = engine_on(watched)
    order = ClaimOrder(
        worker_id="w", worker_instance_id="w-1", lanes=("default",), wait_ms=PATIENT_MS
    )
    task = asyncio.create_task(engine.claims.claim(order))
    execution_id = await driver.submit()
    await has_leased.wait()
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ids(await driver.claim_all()) == [execution_id]
    await engine.close()


async def test_a_claim_cancelled_while_its_look_fails_is_cancelled(driver: Driver) -> None:
    watched = Watched(driver.engine.deps.store.backend)
    looks, may_fail = asyncio.Event(), asyncio.Event()

    async def claim(*_: Any) -> Any:
        looks.set()
        await may_fail.wait()
        raise TransportFault("the store is gone")

    watched.answers["claim"] = claim
    engine = engine_on(watched)
    order = ClaimOrder(
        worker_id="w", worker_instance_id="w-1", lanes=("default",), wait_ms=PATIENT_MS
    )
    task = asyncio.create_task(engine.claims.claim(order))
    await looks.wait()
    task.cancel()
    may_fail.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await engine.close()


async def test_a_claim_that_ends_without_work_passes_its_ring_on(driver: Driver) -> None:
    first = await waiting_claim(driver)
    second = await waiting_claim(driver, worker_instance_id="pool-2")
    first.cancel()
    execution_id = await driver.submit()
    assert ids(await within_reason(second)) == [execution_id]
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_claim_waits_no_longer_than_it_was_told(driver: Driver) -> None:
    async with asyncio.timeout(SOON_S):
        assert await driver.claim_all(wait_ms=1) == []


async def submitted(driver: Driver) -> str:
    return await driver.submit()


async def unblocked(driver: Driver) -> str:
    held = await driver.reach("blocked")
    await found_empty(driver)
    await driver.engine.scheduling.unblock(held.execution_id)
    return held.execution_id


async def lost(driver: Driver) -> str:
    held = await driver.reach("unmarked")
    await found_empty(driver)
    await driver.sweep()
    return held.execution_id


async def timed(driver: Driver) -> str:
    held = await driver.reach("delayed")
    await found_empty(driver)
    due_at = (await driver.record(held.execution_id)).wake_at
    await driver.pass_time(due_at - driver.clock())
    return held.execution_id


async def found_empty(driver: Driver) -> None:
    """Somebody looked and got less than was asked for."""
    assert await driver.claim_all(n=8) == []


@pytest.mark.parametrize("way", [submitted, unblocked, lost, timed])
async def test_work_that_came_while_nobody_waited_is_claimed_at_once(
    driver: Driver, way: Callable[[Driver], Awaitable[str]]
) -> None:
    assert await driver.claim_all(wait_ms=1, n=8) == []
    await found_empty(driver)
    execution_id = await way(driver)
    async with asyncio.timeout(SOON_S):
        assert ids(await driver.claim_all(wait_ms=PATIENT_MS, n=8)) == [execution_id]


async def test_work_that_a_look_left_behind_is_claimed_at_once(driver: Driver) -> None:
    sent = [await driver.submit() for _ in range(3)]
    async with asyncio.timeout(SOON_S):
        claimed = [ids(await driver.claim_all(wait_ms=PATIENT_MS)) for _ in sent]
    assert sorted(claimed) == sorted([one] for one in sent)


async def test_a_lane_that_was_paused_is_looked_into_again(driver: Driver) -> None:
    await found_empty(driver)
    await driver.engine.lanes.configure("default", "default", state="paused")
    execution_id = await driver.submit()
    assert await driver.claim_all(wait_ms=1) == []
    await driver.engine.lanes.configure("default", "default", state="active")
    async with asyncio.timeout(SOON_S):
        assert ids(await driver.claim_all(wait_ms=PATIENT_MS)) == [execution_id]
