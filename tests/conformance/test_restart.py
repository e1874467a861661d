"""A restart: the same execution begins a new round with another input and an empty journal."""

from typing import Any

import pytest

from flowfabric.core.journal import JournalEntry
from flowfabric.core.rules.replay import NewInput
from flowfabric.errors import ExecutionNotActive, ExecutionNotFound, PayloadTooLarge
from flowfabric.operations.signals import Mail
from flowfabric.operations.workers import Claim, Finished, Restart
from tests.conformance.driver import RETRIES, TRANSIENT, Driver, refused
from tests.conformance.test_parent_ends import family
from tests.conformance.worker_calls import calls_on, claimed, finish

STEP = JournalEntry("look", 1, "d", b"1")


async def restarted(driver: Driver, claim: Claim, body: bytes = b"next", **changes: Any) -> Any:
    item = finish(claim, Restart(body, "json"), **changes)
    (answer,) = (await calls_on(driver.engine).finish([item])).items
    return answer


async def test_the_identity_stays_and_all_else_begins_anew(driver: Driver) -> None:
    deadline = driver.clock() + 86_400_000
    own = await driver.submit(
        input=b"first", payload_encoding="raw", tags={"a.b": "c"}, deadline_at=deadline
    )
    first = await claimed(driver.engine)
    proof = driver.engine.deps.leases.proof(first)
    await driver.engine.journals.append(proof, [STEP])
    await driver.engine.mailboxes.signal_by_name(own, "go", Mail())
    driver.clock.advance(5)
    assert await restarted(driver, first) == Finished(state="waiting")
    record = await driver.record(own)
    assert (record.state, record.next, record.round, record.kept_round) == (
        *("waiting", "first"),
        *(1, 1),
    )
    assert (record.mail_count, record.deadline_at, record.tags) == (1, deadline, {"a.b": "c"})
    assert (await driver.engine.journals.read(own)).items == []
    (attempt,) = await driver.attempts(own)
    assert (attempt.state, attempt.ended_at) == ("ended_success", driver.clock())
    assert (attempt.closed_at, attempt.closed_reason) == (driver.clock(), "attempt_success")
    assert await driver.completions() == []
    *_, released = await driver.history(own)
    assert (released.event, released.fields["reason"]) == ("released", "restarted")
    again = await claimed(driver.engine)
    assert (again.input, again.payload_encoding) == (b"next", "json")
    assert (again.attempt_type, again.attempt_index, again.round) == ("initial", 1, 1)
    assert again.journal_length == 0


async def test_retries_and_replays_are_counted_anew(driver: Driver) -> None:
    own = await driver.submit(policy=RETRIES)
    first = await claimed(driver.engine)
    await driver.engine.outcomes.fail(driver.engine.deps.leases.proof(first), TRANSIENT)
    driver.clock.advance(60_000)
    await driver.sweep()
    second = await claimed(driver.engine)
    assert second.retry_count == 1
    await restarted(driver, second)
    record = await driver.record(own)
    assert (record.retry_count, record.reclaim_count, record.replay_count) == (0, 0, 0)
    assert (record.failure_reason, record.failure_category) == ("", "")


async def test_a_repeat_is_answered_like_the_first_call(driver: Driver) -> None:
    own = await driver.submit()
    claim = await claimed(driver.engine)
    assert (await restarted(driver, claim)).state == "waiting"
    again = await restarted(driver, claim)
    assert (again.state, again.replayed) == ("waiting", True)
    assert (await driver.record(own)).round == 1


async def test_only_the_holder_restarts(driver: Driver) -> None:
    await driver.submit()
    claim = await claimed(driver.engine)
    await restarted(driver, claim)
    following = await claimed(driver.engine)
    late = await restarted(driver, claim, op="late")
    assert isinstance(late, Exception)
    assert (await driver.record(claim.execution_id)).round == 1
    assert (await restarted(driver, following)).state == "waiting"
    refusal = await restarted(driver, following, op="late")
    assert isinstance(refusal, ExecutionNotActive)


async def test_an_input_that_is_too_large_changes_nothing(driver: Driver) -> None:
    await driver.submit()
    claim = await claimed(driver.engine)
    refusal = await restarted(driver, claim, b"x" * (1024 * 1024 + 1))
    assert isinstance(refusal, PayloadTooLarge)
    assert (await driver.record(claim.execution_id)).state == "active"


@pytest.mark.parametrize("own", ["root", "left"])
async def test_live_children_of_the_rounds_before_end(driver: Driver, own: str) -> None:
    found = await family(driver)
    await found.add("left")
    await found.add("child", own)
    await found.add("grandchild", "child")
    await found.add("kept", own, on_parent_end="leave")
    held = await driver.take(found.ids[own])
    await driver.engine.outcomes.restart(held.proof, NewInput(b"{}", "json"))
    assert await found.states("child", "grandchild", "kept") == [
        "cancelled",
        "cancelled",
        "waiting",
    ]
    child = await found.record("child")
    assert (child.cancellation_reason, child.cancelled_by) == ("parent restarted", "parent_end")
    await found.add("next", own)
    assert await found.states(own, "next") == ["waiting", "waiting"]


async def test_children_of_dropped_rounds_go_although_the_flow_lives_on(driver: Driver) -> None:
    found = await family(driver)
    policy = {"retention_ms": 1_000}
    await found.add("old", policy=policy)
    await found.add("below", "old", policy=policy)
    await found.cancel("below")
    await found.cancel("old")
    held = await driver.take(found.ids["root"])
    driver.clock.advance(5_000)
    backend = driver.engine.deps.store.backend
    assert await backend.purge(10) == 0
    await driver.engine.outcomes.restart(held.proof, NewInput(b"{}", "json"))
    await found.add("new", policy=policy)
    await found.cancel("new")
    driver.clock.advance(5_000)
    purged = await backend.purge(10)
    driver.clock.advance(5_000)
    # What belonged to the one that is gone follows, if it did not go with it.
    assert purged + await backend.purge(10) == 2
    for name in ("old", "below"):
        with refused(ExecutionNotFound):
            await found.record(name)
    assert await found.states("root", "new") == ["waiting", "cancelled"]
