"""The journal: steps kept under the lease, each once, for the attempts that follow."""

import asyncio

import pytest

from flowfabric.core.journal import JournalEntry
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.errors import (
    ExecutionNotActive,
    ExecutionNotFound,
    FenceRequired,
    FlowFabricError,
    LeaseExpired,
    LeaseRevoked,
    Nondeterminism,
    PartialFenceTriple,
    PayloadTooLarge,
    ResourceExhausted,
    StaleLease,
)
from flowfabric.operations.attempts import Kept, NewEntry
from flowfabric.operations.execution_queries import ExecutionQueries
from tests.conformance.driver import (
    FINAL,
    NOWHERE,
    RUNNABLE,
    TRANSIENT,
    Driver,
    fenced,
    guess,
    refused,
    stranger,
    unfenced,
)
from tests.proofs import proves

FETCH = JournalEntry("fetch", 0, "d1", b"\x00\xff")
STORE = JournalEntry("store", 0, "d2", b"")


def _under(held: LeaseProof, entry: JournalEntry) -> NewEntry:
    """A request to keep a step."""
    return NewEntry(
        execution_id=held.execution_id,
        lease_id=held.lease_id,
        lease_epoch=held.lease_epoch or 0,
        attempt_id=held.attempt_id,
        entry=entry,
    )


async def test_a_step_is_stored_once_and_found_again(driver: Driver) -> None:
    held = (await driver.started()).proof
    journals = driver.engine.journals
    assert await journals.append(held, [FETCH, STORE]) == [Kept(True), Kept(True)]
    repeat = JournalEntry("fetch", 0, "d1", b"something else")
    assert await journals.append(held, [repeat]) == [Kept(False, b"\x00\xff")]
    assert await driver.journal(held.execution_id) == [FETCH, STORE]


async def test_each_use_of_a_name_is_a_step_of_its_own(driver: Driver) -> None:
    held = (await driver.started()).proof
    steps = [JournalEntry("fetch", n, f"d{n}", b"%d" % n) for n in (2, 0, 1)]
    for step in steps:
        await driver.engine.journals.append(held, [step])
    assert await driver.journal(held.execution_id) == steps


async def test_another_digest_is_nondeterminism(driver: Driver) -> None:
    held = (await driver.started()).proof
    journals = driver.engine.journals
    await journals.append(held, [FETCH])
    with refused(Nondeterminism) as caught:
        await journals.append(held, [JournalEntry("fetch", 0, "d9", b"")])
    assert caught.value.details == {"recorded": "d1", "given": "d9"}
    assert await driver.journal(held.execution_id) == [FETCH]


async def test_one_contradiction_does_not_spoil_the_other_steps(driver: Driver) -> None:
    held = (await driver.started()).proof
    journals = driver.engine.journals
    await journals.append(held, [FETCH])
    wrong = JournalEntry("fetch", 0, "d9", b"")
    items = [_under(held, entry) for entry in (FETCH, wrong, STORE)]
    first, second, third = await journals.append_journal(items)
    assert first == Kept(False, FETCH.outcome)
    assert isinstance(second, Nondeterminism)
    assert third == Kept(True)
    assert await driver.journal(held.execution_id) == [FETCH, STORE]


async def test_the_journal_outlives_attempts(driver: Driver) -> None:
    policy = {"retry_policy": {"backoff": {"type": "fixed", "delay_ms": 10}}}
    first = await driver.started(policy=policy)
    journals = driver.engine.journals
    await journals.append(first.proof, [FETCH])
    await driver.engine.outcomes.fail(first.proof, TRANSIENT)
    await driver.pass_time(10)
    second = await driver.claim()
    assert second.journal_length == 1
    assert await journals.append(second.proof, [FETCH]) == [Kept(False, FETCH.outcome)]
    assert await journals.append(second.proof, [STORE]) == [Kept(True)]
    assert await driver.journal(first.execution_id) == [FETCH, STORE]


async def test_a_replay_begins_with_an_empty_journal(driver: Driver) -> None:
    claimed = await driver.started()
    journals = driver.engine.journals
    await journals.append(claimed.proof, [FETCH])
    await driver.engine.outcomes.complete(claimed.proof)
    assert await driver.journal(claimed.execution_id) == [FETCH]
    await driver.engine.operators.replay(claimed.execution_id)
    assert await driver.journal(claimed.execution_id) == []
    again = await driver.claim()
    other = JournalEntry("fetch", 0, "d9", b"new")
    assert await journals.append(again.proof, [other]) == [Kept(True)]


@proves(ExecutionQueries.journal)
async def test_reading_in_pages(driver: Driver) -> None:
    held = (await driver.started()).proof
    journals = driver.engine.journals
    steps = [JournalEntry("step", n, "d", b"%d" % n) for n in range(250)]
    await journals.append(held, steps)
    first = await journals.read(held.execution_id, limit=2)
    assert first.items == steps[:2]
    second = await journals.read(held.execution_id, int(first.next_cursor), 248)
    assert second.items == steps[2:]
    assert second.next_cursor == ""
    assert await driver.journal(held.execution_id) == steps


async def test_an_unknown_execution_has_an_empty_journal(driver: Driver) -> None:
    assert await driver.journal(NOWHERE) == []
    with refused(ExecutionNotFound):
        await driver.engine.journals.read(NOWHERE)


async def test_journals_come_with_a_claim(driver: Driver) -> None:
    journals = driver.engine.journals
    first, second = [await driver.started() for _ in range(2)]
    steps = [JournalEntry("step", n, "d", b"%d" % n) for n in range(2_500)]
    await journals.append(first.proof, steps)
    await journals.append(second.proof, [FETCH])
    for claimed in (first, second):
        await driver.engine.outcomes.delay(claimed.proof, for_ms=0)
    fresh = await driver.submit()
    claims = await driver.claim_all(n=3)
    assert {claimed.journal_length for claimed in claims} == {2_500, 1, 0}
    assert {one.execution_id: await driver.journal(one.execution_id) for one in claims} == {
        first.execution_id: steps,
        second.execution_id: [FETCH],
        fresh: [],
    }


async def test_steps_that_run_at_once_are_all_kept(driver: Driver) -> None:
    held = (await driver.started()).proof
    journals = driver.engine.journals
    steps = [JournalEntry("step", n, f"d{n}", b"%d" % n) for n in range(100)]
    twice = [journals.append(held, [step]) for step in steps for _ in range(2)]
    answers = await asyncio.gather(*twice)
    assert [kept.stored for (kept,) in answers] == [True, False] * 100
    assert await driver.journal(held.execution_id) == steps


# ---- limits


async def test_an_outcome_has_a_mebibyte_and_not_a_byte_more(driver: Driver) -> None:
    held = (await driver.started()).proof
    journals = driver.engine.journals
    with refused(PayloadTooLarge):
        await journals.append(held, [FETCH, JournalEntry("large", 0, "d", bytes(1024 * 1024 + 1))])
    assert await driver.journal(held.execution_id) == []
    largest = JournalEntry("large", 0, "d", b"\xff" * 1024 * 1024)
    await journals.append(held, [largest])
    assert await driver.journal(held.execution_id) == [largest]


async def test_a_journal_has_ten_thousand_entries_and_not_one_more(driver: Driver) -> None:
    held = (await driver.started()).proof
    journals = driver.engine.journals
    steps = [JournalEntry("step", n, "d", b"%d" % n) for n in range(9_999)]
    for start in range(0, len(steps), 3_333):
        await journals.append(held, steps[start : start + 3_333])
    with refused(ResourceExhausted) as caught:
        await journals.append(held, [FETCH, STORE])
    assert caught.value.details == {"resource": "journal"}
    assert await journals.append(held, [FETCH]) == [Kept(True)]
    with refused(ResourceExhausted):
        await journals.append(held, [STORE])
    # What is there is still found.
    assert await journals.append(held, [FETCH, steps[0]]) == [
        Kept(False, FETCH.outcome),
        Kept(False, b"0"),
    ]
    assert await driver.journal(held.execution_id) == [*steps, FETCH]


# ---- who may not write


@pytest.mark.parametrize(
    ("situation", "error"),
    [
        *[(situation, ExecutionNotActive) for situation in (*RUNNABLE, "suspended", *FINAL)],
        ("unmarked", LeaseExpired),
        ("lease_expired", LeaseExpired),
        ("lease_revoked", LeaseRevoked),
    ],
)
async def test_without_a_live_lease_nothing_is_kept(
    driver: Driver, situation: str, error: type[FlowFabricError]
) -> None:
    held = await driver.reach(situation)
    if not held.lease_id:
        held = guess(held.execution_id)
    with refused(error):
        await driver.engine.journals.append(held, [FETCH])
    assert await driver.journal(held.execution_id) == []


@pytest.mark.parametrize("part", ["lease_id", "lease_epoch", "attempt_id"])
async def test_another_owner_keeps_nothing(driver: Driver, part: str) -> None:
    held = await driver.reach("active")
    wrong = held.lease_epoch + 1 if part == "lease_epoch" else stranger()
    with refused(StaleLease):
        await driver.engine.journals.append(fenced(held, **{part: wrong}), [FETCH])
    items = [_under(fenced(held, **{part: wrong}), entry) for entry in (FETCH, STORE)]
    for refusal in await driver.engine.journals.append_journal(items):
        assert isinstance(refusal, StaleLease)
    assert await driver.journal(held.execution_id) == []


async def test_the_fence_must_be_whole(driver: Driver) -> None:
    held = await driver.reach("active")
    journals = driver.engine.journals
    with refused(ExecutionNotFound):
        await journals.append(guess(NOWHERE), [FETCH])
    with refused(FenceRequired):
        await journals.append(unfenced(held.execution_id), [FETCH])
    with refused(PartialFenceTriple):
        await journals.append(fenced(held, attempt_id=""), [FETCH])
