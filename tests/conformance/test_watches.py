"""Workers learn of leases that were taken, and tell how far they are."""

import asyncio
from typing import Any

from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.operations.attempts import HeldAttempts, Progress, ProgressReported
from flowfabric.operations.workers import HeldLease, Workers
from tests.conformance.driver import Driver, unfenced
from tests.conformance.feeds import SOON_S
from tests.proofs import proves


def as_held(held: LeaseProof) -> HeldLease:
    return HeldLease(held.execution_id, held.lease_id)


@proves(Workers.watch)
async def test_a_taken_lease_ends_the_watch(driver: Driver) -> None:
    watch = driver.engine.watches.watch
    taken, kept = (await driver.started()).proof, (await driver.started()).proof
    begun = await watch("pool-1", wait_ms=0)
    # A store that cannot tell whether it missed a notification answers what is held.
    assert begun.held is None or set(begun.held) == {as_held(taken), as_held(kept)}
    waiting = asyncio.ensure_future(watch("pool-1", "default", begun.mark, 20_000))
    await asyncio.sleep(0)
    await driver.engine.outcomes.cancel(unfenced(taken.execution_id), "enough")
    found = await waiting
    assert found.held == (as_held(kept),)
    # Another namespace has none of them.
    assert (await watch("pool-1", "elsewhere", "old", 0)).held == ()


async def test_a_lease_that_is_taken_between_two_watches_ends_the_second(driver: Driver) -> None:
    watch = driver.engine.watches.watch
    taken = (await driver.started()).proof
    begun = await watch("pool-1", wait_ms=0)
    async with asyncio.timeout(SOON_S):
        while begun.held is not None:
            # The store does not hear of other processes yet.
            begun = await watch("pool-1", wait_ms=0)
    await driver.engine.outcomes.cancel(unfenced(taken.execution_id), "enough")
    async with asyncio.timeout(SOON_S):
        assert (await watch("pool-1", "default", begun.mark, 20_000)).held == ()


@proves(HeldAttempts.report_progress)
async def test_progress_is_merged(driver: Driver) -> None:
    held = (await driver.started()).proof
    fence: dict[str, Any] = {
        "execution_id": held.execution_id,
        "lease_id": held.lease_id,
        "lease_epoch": held.lease_epoch,
        "attempt_id": held.attempt_id,
    }
    report = driver.engine.leases.report_progress
    assert await report(Progress(**fence, progress_pct=10, progress_message="begun")) == (
        ProgressReported()
    )
    await report(Progress(**fence, progress_pct=60))
    record = await driver.record(held.execution_id)
    assert (record.progress_pct, record.progress_message) == (60, "begun")
