"""Steps that are journaled by the very call that ends their attempt."""

from typing import Any

import pytest

from flowfabric.core.journal import JournalEntry
from flowfabric.errors import FlowFabricError, InvalidInput, StaleLease
from flowfabric.operations.attempts import Kept
from flowfabric.operations.workers import Cancel, ClaimTerms, Complete, Delay, Fail, Finish
from tests.conformance.driver import RETRIES, Driver, stranger
from tests.conformance.worker_calls import WORKER, calls_on, claimed, fence

FETCH = JournalEntry("fetch", 1, "d1", b"\x00\xff")
ANSWER = JournalEntry("ff.wait_for", 1, "d2", b"yes")


async def ended(driver: Driver, claim: Any, outcome: Any, **changes: Any) -> Any:
    """The answer to a finish that brings a step along."""
    terms = {"op": "end", "steps": (ANSWER,)} | changes
    finish = Finish(**(fence(claim) | terms), outcome=outcome)
    reply = await calls_on(driver.engine).finish([finish], ClaimTerms(**WORKER))
    return reply.items[0]


@pytest.mark.parametrize(
    ("outcome", "state"),
    [(Complete(b"done"), "completed"), (Fail("broken", "flaky"), "delayed")],
)
async def test_a_step_is_journaled_with_the_end_of_its_attempt(
    driver: Driver, outcome: Complete | Fail, state: str
) -> None:
    await driver.submit(policy=RETRIES)
    claim = await claimed(driver.engine)
    journals = driver.engine.journals
    held = driver.engine.deps.leases.proof(Finish(**fence(claim), op="x", outcome=outcome))
    assert await journals.append(held, [FETCH]) == [Kept(True)]
    # Sent twice, with an answer that was lost.
    for _ in range(2):
        assert (await ended(driver, claim, outcome)).state == state
    assert await driver.journal(claim.execution_id) == [FETCH, ANSWER]


async def test_what_is_journaled_already_stays(driver: Driver) -> None:
    await driver.submit()
    claim = await claimed(driver.engine)
    held = driver.engine.deps.leases.proof(Finish(**fence(claim), op="x", outcome=Complete()))
    await driver.engine.journals.append(held, [FETCH])
    other = JournalEntry("fetch", 1, "d9", b"other")
    steps = (other, ANSWER, ANSWER)
    assert (await ended(driver, claim, Complete(), steps=steps)).state == "completed"
    assert await driver.journal(claim.execution_id) == [FETCH, ANSWER]


async def test_a_refused_finish_journals_nothing(driver: Driver) -> None:
    await driver.submit()
    claim = await claimed(driver.engine)
    assert isinstance(await ended(driver, claim, Complete(), lease_id=stranger()), StaleLease)
    assert await driver.journal(claim.execution_id) == []


@pytest.mark.parametrize("outcome", [Delay(for_ms=5), Cancel("enough")])
async def test_other_outcomes_bring_no_steps(driver: Driver, outcome: Delay | Cancel) -> None:
    await driver.submit()
    claim = await claimed(driver.engine)
    answer = await ended(driver, claim, outcome)
    assert isinstance(answer, InvalidInput)
    assert (await driver.record(claim.execution_id)).state == "active"


async def test_a_bad_step_spoils_only_its_own_finish(driver: Driver) -> None:
    for _ in range(2):
        await driver.submit()
    good, bad = [await claimed(driver.engine) for _ in range(2)]
    nameless = JournalEntry("", 1, "", b"")
    items = [
        Finish(**fence(one), op="end", outcome=Complete(), steps=(step,))
        for one, step in ((good, ANSWER), (bad, nameless))
    ]
    first, second = (await calls_on(driver.engine).finish(items)).items
    assert not isinstance(first, FlowFabricError)
    assert isinstance(second, InvalidInput)
    assert await driver.journal(good.execution_id) == [ANSWER]
    assert (await driver.record(bad.execution_id)).state == "active"
