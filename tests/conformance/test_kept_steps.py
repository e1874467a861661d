"""A replay that keeps what was recorded, or what was recorded before a step."""

from typing import Any

import pytest

from flowfabric.core.journal import JournalEntry
from flowfabric.core.rules.attempts import Failure
from flowfabric.errors import (
    ExecutionNotTerminal,
    InvalidInput,
    MaxReplaysExhausted,
)
from flowfabric.operations.executions import Executions
from flowfabric.operations.signals import Mail
from flowfabric.operations.workers import Claim, Park
from tests.conformance.driver import Driver, refused
from tests.conformance.worker_calls import calls_on, claimed, finish
from tests.proofs import proves

NAMES = ("look", "pay", "tell", "pay")


def entries(*names: str) -> list[JournalEntry]:
    return [
        JournalEntry(name, names[: place + 1].count(name), "d", f"{place}".encode())
        for place, name in enumerate(names)
    ]


async def failed(driver: Driver, names: tuple[str, ...] = NAMES, **fields: Any) -> str:
    """An execution that recorded steps and failed for good."""
    held = await driver.reach("active")
    await driver.engine.journals.append(held, entries(*names))
    failure = Failure("broken", "bug", False, **fields)
    await driver.engine.outcomes.fail(held, failure)
    return held.execution_id


async def kept(driver: Driver, execution_id: str) -> list[str]:
    page = await driver.engine.journals.read(execution_id)
    return [f"{one.name}#{one.seq}" for one in page.items]


async def replay(driver: Driver, execution_id: str, **order: Any) -> None:
    await driver.engine.operators.replay(execution_id, **order)


@proves(Executions.replay)
async def test_all_steps_may_be_kept(driver: Driver) -> None:
    own = await failed(driver)
    await replay(driver, own, steps="keep")
    record = await driver.record(own)
    assert (record.state, record.next, record.round, record.replay_count) == (
        *("waiting", "replay"),
        *(0, 1),
    )
    assert await kept(driver, own) == ["look#1", "pay#1", "tell#1", "pay#2"]
    claim = await claimed(driver.engine)
    assert (claim.attempt_type, claim.journal_length, claim.round) == ("replay", 4, 0)


@pytest.mark.parametrize(
    ("until", "left", "rounds"),
    [
        ("pay", ["look#1"], (1, 0)),
        ("pay#2", ["look#1", "pay#1", "tell#1"], (1, 0)),
        ("look", [], (1, 1)),
    ],
)
async def test_steps_may_be_kept_up_to_one(
    driver: Driver, until: str, left: list[str], rounds: tuple[int, int]
) -> None:
    own = await failed(driver)
    await replay(driver, own, steps_until=until)
    record = await driver.record(own)
    assert (record.round, record.kept_round) == rounds
    assert await kept(driver, own) == left
    # The numbers go on behind what is left.
    claim = await claimed(driver.engine)
    await driver.engine.journals.append(driver.engine.deps.leases.proof(claim), entries("after"))
    assert await kept(driver, own) == [*left, "after#1"]


async def test_nothing_is_kept_unless_asked_for(driver: Driver) -> None:
    own = await failed(driver)
    await replay(driver, own)
    record = await driver.record(own)
    assert (record.round, record.kept_round) == (1, 1)
    assert await kept(driver, own) == []


async def test_a_recorded_failure_that_ended_it_is_dropped_with_what_followed(
    driver: Driver,
) -> None:
    own = await failed(driver, ("look", "ff.failed pay", "tell"), step="pay#1")
    assert (await driver.record(own)).failure_step == "pay#1"
    await replay(driver, own, steps="keep")
    record = await driver.record(own)
    assert (record.failure_step, record.round) == ("", 1)
    assert await kept(driver, own) == ["look#1"]


async def test_an_unknown_step_changes_nothing(driver: Driver) -> None:
    own = await failed(driver)
    before = await driver.snapshot()
    with refused(InvalidInput) as caught:
        await replay(driver, own, steps_until="pya")
    assert "'pay'" in caught.value.detail
    with refused(InvalidInput):
        await replay(driver, own, steps="some")
    assert await driver.snapshot() == before


async def test_a_live_execution_is_refused_unless_it_is_parked(driver: Driver) -> None:
    held = await driver.reach("suspended")
    with refused(ExecutionNotTerminal):
        await replay(driver, held.execution_id, steps="keep")


@pytest.mark.parametrize("steps", ["keep", "drop"])
async def test_the_attempt_of_a_parked_execution_ends(driver: Driver, steps: str) -> None:
    claim = await parked(driver)
    await replay(driver, claim.execution_id, steps=steps)
    (attempt,) = await driver.attempts(claim.execution_id)
    assert (attempt.state, attempt.failure_category) == ("ended_failure", "nondeterminism")
    assert attempt.ended_at == driver.clock()
    again = await claimed(driver.engine)
    assert (again.attempt_index, again.attempt_type) == (1, "replay")
    assert again.journal_length == (4 if steps == "keep" else 0)


async def test_mail_stays_with_kept_steps(driver: Driver) -> None:
    claim = await parked(driver)
    await driver.engine.mailboxes.signal_by_name(claim.execution_id, "go", Mail())
    await replay(driver, claim.execution_id, steps_until="pay")
    assert (await driver.record(claim.execution_id)).mail_count == 1
    found = await driver.engine.mailboxes.read_mailbox(claim.execution_id)
    assert [one.signal_name for one in found.signals] == ["go"]


async def test_all_replays_share_one_limit(driver: Driver) -> None:
    held = await driver.reach("active", policy={"max_replay_count": 1})
    await driver.engine.outcomes.fail(held, Failure("broken", "bug", False))
    await replay(driver, held.execution_id, steps="keep")
    claim = await claimed(driver.engine)
    await calls_on(driver.engine).finish([finish(claim, Park("differs"))])
    with refused(MaxReplaysExhausted):
        await replay(driver, held.execution_id, steps="keep")


async def test_a_long_journal_is_cut_at_its_place(driver: Driver) -> None:
    held = await driver.reach("active")
    names = [f"step {n}" for n in range(300)]
    await driver.engine.journals.append(held, entries(*names))
    await driver.engine.outcomes.fail(held, Failure("broken", "bug", False))
    await replay(driver, held.execution_id, steps_until="step 140")
    page = await driver.engine.journals.read(held.execution_id, 100, 1_000)
    assert [one.name for one in page.items] == names[100:140]


async def parked(driver: Driver) -> Claim:
    await driver.submit()
    claim = await claimed(driver.engine)
    await driver.engine.journals.append(driver.engine.deps.leases.proof(claim), entries(*NAMES))
    await calls_on(driver.engine).finish([finish(claim, Park("differs"))])
    return claim
