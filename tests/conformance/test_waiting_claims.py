"""Idle claims: they wait for a doorbell and are woken when there is something for them."""

import asyncio
from typing import Any

import pytest

from flowfabric.engine.claims import Claimed
from tests.conformance.driver import Driver

PATIENT_MS = 30_000
SOON_S = 3.0
"""Well below the pause after which an idle claim looks although no bell rang."""


def ids(claimed: list[Claimed]) -> list[str]:
    return [each.execution_id for each in claimed]


async def waiting_claim(driver: Driver, **fields: Any) -> asyncio.Task[list[Claimed]]:
    """A claim that found nothing and waits for a bell: it had time for more than two looks."""
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
