"""The mailbox: signals sent by name are kept until a wait takes them, each once and in order."""

import asyncio
from typing import Any

import msgspec
import pytest

from flowfabric.core.conditions import signal_set
from flowfabric.core.journal import JournalEntry
from flowfabric.core.rules.mailbox import KEPT, MOST_UNREAD
from flowfabric.core.rules.operators import note
from flowfabric.core.rules.signals import Accepted, Duplicate
from flowfabric.core.suspend_outcomes import Outcome, Satisfied, Suspended
from flowfabric.engine.attempts.claimed import Claimed
from flowfabric.errors import (
    Conflict,
    ExecutionNotActive,
    ExecutionNotFound,
    InvalidInput,
    LeaseExpired,
    PayloadTooLarge,
    ResourceExhausted,
    SignalLimitExceeded,
)
from flowfabric.operations.attempts import SuspendOrder
from flowfabric.operations.signals import Delivered, Mail, NewSignal, Signals
from tests.conformance.driver import (
    LEASE_MS,
    NOWHERE,
    RETRIES,
    TRANSIENT,
    Driver,
    refused,
    stranger,
)
from tests.conformance.waiting import pause
from tests.proofs import proves

SATISFIED = "resume_condition_satisfied"
DAY_MS = 86_400_000


async def send(
    driver: Driver, execution_id: str, name: str = "go", payload: Any = None, id: str = ""
) -> Delivered:
    body = None if payload is None else msgspec.Raw(msgspec.json.encode(payload))
    return await driver.engine.mailboxes.signal_by_name(
        execution_id, name, Mail(payload=body, id=id)
    )


async def effect(driver: Driver, execution_id: str, name: str = "go", payload: Any = None) -> str:
    sent = await send(driver, execution_id, name, payload)
    assert isinstance(sent, Accepted)
    return sent.effect


async def unread(driver: Driver, execution_id: str) -> list[str]:
    found = await driver.engine.mailboxes.read_mailbox(execution_id)
    return [one.signal_name for one in found.signals]


async def wait(driver: Driver, claimed: Claimed, *names: str, **more: Any) -> Outcome:
    order = SuspendOrder(resume_condition=signal_set(*names), mailbox=True, **more)
    return await driver.engine.suspensions.try_suspend(claimed.proof, order)


async def take(driver: Driver, claimed: Claimed, name: str, *seqs: int) -> bool:
    """Record an entry and take mail with it; whether the entry was new."""
    entry = JournalEntry(name, 1, "d", b"1")
    (kept,) = await driver.engine.journals.append(claimed.proof, [entry], seqs)
    return kept.stored


async def counted(driver: Driver, execution_id: str) -> tuple[int, int]:
    record = await driver.record(execution_id)
    found = await driver.engine.deps.seen(execution_id, documents=("mail/*",))
    assert record.mail_bytes == sum(len(one.body) for one in found.documents.values())
    assert record.mail_count == len(found.documents)
    return record.mail_count, record.signal_count


@proves(Signals.signal_by_name)
@proves(Signals.read_mailbox)
async def test_mail_is_kept_in_every_live_state_in_order(driver: Driver) -> None:
    own = await driver.submit()
    assert await effect(driver, own, "waiting", {"n": 1}) == KEPT
    held = await driver.claim()
    assert await effect(driver, own, "active") == KEPT
    await driver.suspend(held.proof)
    assert await effect(driver, own, "suspended") == KEPT
    assert (await driver.record(own)).state == "suspended"
    found = (await driver.engine.mailboxes.read_mailbox(own)).signals
    assert [one.signal_name for one in found] == ["waiting", "active", "suspended"]
    assert [one.mail_seq for one in found] == [1, 2, 3]
    assert found[0].payload == b'{"n":1}'
    assert found[1].payload is None
    assert await counted(driver, own) == (3, 3)


async def test_a_repeated_id_counts_once_for_a_day_whatever_became_of_it(driver: Driver) -> None:
    own = await driver.submit()
    assert await send(driver, own, id="order-7") == Accepted("order-7", KEPT)
    assert await send(driver, own, "other", id="order-7") == Duplicate("order-7")
    held = await driver.claim()
    assert await take(driver, held, "step", 1)
    assert await send(driver, own, id="order-7") == Duplicate("order-7")
    await driver.engine.outcomes.complete(held.proof)
    assert await send(driver, own, id="order-7") == Duplicate("order-7")
    with refused(ExecutionNotActive):
        await send(driver, own, id="order-8")
    driver.clock.advance(DAY_MS)
    with refused(ExecutionNotActive):
        await send(driver, own, id="order-7")


async def test_an_id_is_free_again_after_a_day(driver: Driver) -> None:
    own = await driver.submit()
    await send(driver, own, id="tick")
    driver.clock.advance(DAY_MS - 1)
    assert await send(driver, own, id="tick") == Duplicate("tick")
    driver.clock.advance(1)
    assert await send(driver, own, id="tick") == Accepted("tick", KEPT)
    assert await counted(driver, own) == (2, 2)


async def test_what_cannot_be_kept_is_refused(driver: Driver) -> None:
    own = await driver.submit(policy={"max_signals_per_execution": 2})
    with refused(ExecutionNotFound):
        await send(driver, NOWHERE)
    with pytest.raises(InvalidInput):
        await send(driver, own, "")
    with pytest.raises(InvalidInput):
        await send(driver, own, "__timeout_only__")
    with pytest.raises(InvalidInput):
        await send(driver, own, id="x" * 257)
    with pytest.raises(PayloadTooLarge):
        await send(driver, own, payload="x" * 65_535)
    await send(driver, own, payload="x" * 65_534)
    await send(driver, own)
    with pytest.raises(SignalLimitExceeded):
        await send(driver, own)
    assert await counted(driver, own) == (2, 2)


async def test_a_mailbox_that_is_full_of_bytes_refuses_until_some_are_taken(
    driver: Driver,
) -> None:
    own = await driver.submit()
    for _ in range(15):
        await send(driver, own, payload="x" * 65_534)
    with pytest.raises(ResourceExhausted) as caught:
        await send(driver, own, payload="x" * 65_534)
    assert caught.value.details["resource"] == "mailbox"
    assert caught.value.is_for_callers()
    assert await effect(driver, own, payload="small") == KEPT
    held = await driver.claim()
    assert await take(driver, held, "step", 1)
    assert await effect(driver, own, payload="x" * 65_534) == KEPT
    assert await counted(driver, own) == (16, 17)


async def test_a_mailbox_takes_a_thousand_signals(driver: Driver) -> None:
    own = await driver.submit(policy={"max_signals_per_execution": 0})
    # Read and written once instead of a thousand times: the count is what the rule looks at.
    await driver.engine.deps.apply(
        msgspec.structs.replace(note(own), set={"mail_count": MOST_UNREAD - 1})
    )
    assert await effect(driver, own) == KEPT
    with pytest.raises(ResourceExhausted):
        await send(driver, own)
    await driver.engine.deps.apply(msgspec.structs.replace(note(own), set={"mail_count": 1}))


async def test_fifty_senders_at_once_are_all_kept(driver: Driver) -> None:
    own = await driver.submit()
    sent = await asyncio.gather(*(send(driver, own, id=str(n)) for n in range(50)))
    assert all(isinstance(one, Accepted) for one in sent)
    assert await counted(driver, own) == (50, 50)
    again = await asyncio.gather(*(send(driver, own, id=str(n)) for n in range(50)))
    assert again == [Duplicate(str(n)) for n in range(50)]


# ---- waits


async def test_a_wait_resumes_with_the_mail_it_waited_for(driver: Driver) -> None:
    held = await driver.started()
    own = held.execution_id
    assert isinstance(await wait(driver, held, "a", "b"), Suspended)
    assert await effect(driver, own, "x") == KEPT
    assert await effect(driver, own, "b", 2) == "appended_to_waitpoint"
    assert await effect(driver, own, "b", 3) == KEPT
    assert await effect(driver, own, "a", 1) == SATISFIED
    assert (await driver.record(own)).state == "waiting"
    ended = await driver.engine.signals.resume_signals(own)
    assert [(one.signal_name, one.payload, one.mail_seq) for one in ended.signals] == [
        ("b", b"2", 2),
        ("a", b"1", 4),
    ]
    # It stays there until what was made of it is recorded.
    assert await unread(driver, own) == ["x", "b", "b", "a"]
    again = await driver.claim()
    assert await take(driver, again, "ff.wait_for", 2, 4)
    assert await unread(driver, own) == ["x", "b"]
    assert await counted(driver, own) == (2, 4)


async def test_mail_that_came_before_meets_a_wait_without_a_pause(driver: Driver) -> None:
    own = await driver.submit()
    for name in ("b", "a", "b"):
        await send(driver, own, name, name)
    held = await driver.claim()
    met = await wait(driver, held, "a")
    assert isinstance(met, Satisfied)
    assert [one.mail_seq for one in met.signals] == [2]
    met = await wait(driver, held, "a", "b")
    assert isinstance(met, Satisfied)
    assert [one.mail_seq for one in met.signals] == [1, 2]
    met = await wait(driver, held)
    assert isinstance(met, Satisfied)
    assert [one.mail_seq for one in met.signals] == [1]
    assert (await driver.record(own)).state == "active"


async def test_a_wait_counts_what_came_before_and_after_it(driver: Driver) -> None:
    own = await driver.submit()
    await send(driver, own, "a")
    await send(driver, own, "a")
    held = await driver.claim()
    assert isinstance(await wait(driver, held, "a", "b"), Suspended)
    assert await effect(driver, own, "a") == KEPT
    assert await effect(driver, own, "b") == SATISFIED
    ended = await driver.engine.signals.resume_signals(own)
    assert [one.mail_seq for one in ended.signals] == [1, 4]


async def test_mail_between_the_look_and_the_suspend_is_not_passed_over(driver: Driver) -> None:
    held = await driver.started()
    assert held.record.mail_count == 0
    await send(driver, held.execution_id, "other")
    await send(driver, held.execution_id, "go")
    met = await wait(driver, held, "go")
    assert isinstance(met, Satisfied)
    assert [one.mail_seq for one in met.signals] == [2]
    await send(driver, held.execution_id, "more")
    assert isinstance(await wait(driver, held, "last"), Suspended)


async def test_signals_by_token_and_mail_count_for_one_wait(driver: Driver) -> None:
    held = await driver.started()
    own = held.execution_id
    outcome = await wait(driver, held, "a", "b")
    assert isinstance(outcome, Suspended)
    (issued,) = outcome.details.waitpoints
    await driver.engine.signals.signal(
        own,
        NewSignal(
            waitpoint_id=issued.waitpoint_id,
            signal_id=stranger(),
            signal_name="a",
            signal_category="c",
            source_type="external",
            source_identity="grace",
            waitpoint_token=issued.waitpoint_token,
        ),
    )
    assert await effect(driver, own, "a") == KEPT
    assert await effect(driver, own, "b") == SATISFIED
    ended = await driver.engine.signals.resume_signals(own)
    assert [(one.signal_name, one.mail_seq) for one in ended.signals] == [("a", 0), ("b", 3)]


async def test_a_suspend_without_mailbox_never_looks_into_it(driver: Driver) -> None:
    own = await driver.submit()
    await send(driver, own, "go")
    paused = await pause(driver)
    await send(driver, paused.execution_id, "go")
    assert (await driver.record(paused.execution_id)).state == "suspended"
    assert await paused.signal("go") == SATISFIED


async def test_a_wait_that_times_out_takes_nothing(driver: Driver) -> None:
    held = await driver.started()
    own = held.execution_id
    await wait(driver, held, "a", "b", timeout_ms=1_000, timeout_behavior="auto_resume")
    assert await effect(driver, own, "a") == "appended_to_waitpoint"
    await driver.pass_time(1_000)
    ended = await driver.engine.signals.resume_signals(own)
    assert ended.resumed_by == "timeout"
    assert [one.mail_seq for one in ended.signals] == [0]
    assert await unread(driver, own) == ["a"]


async def test_a_repeated_suspend_is_answered_as_the_first(driver: Driver) -> None:
    own = await driver.submit()
    await send(driver, own, "other")
    held = await driver.claim()
    more = {"op": "s:1", "suspension_id": "7b1c2d3e-4f50-4a6b-8c7d-9e0f1a2b3c4d"}
    first = await wait(driver, held, "go", **more)
    assert isinstance(first, Suspended)
    again = await wait(driver, held, "go", **more)
    assert isinstance(again, Suspended)
    assert again.details == first.details


async def test_who_lost_the_lease_neither_waits_nor_takes(driver: Driver) -> None:
    own = await driver.submit()
    await send(driver, own)
    held = await driver.claim()
    driver.clock.advance(LEASE_MS)
    with refused(LeaseExpired):
        await wait(driver, held, "other")
    with refused(LeaseExpired):
        await take(driver, held, "step", 1)
    assert await unread(driver, own) == ["go"]


# ---- taking


async def test_mail_leaves_once_and_only_with_a_new_entry(driver: Driver) -> None:
    own = await driver.submit()
    for name in ("a", "b", "c"):
        await send(driver, own, name)
    held = await driver.claim()
    assert await take(driver, held, "first", 1)
    # A repeat whose answer was lost takes nothing more.
    assert not await take(driver, held, "first", 1)
    with pytest.raises(Conflict):
        await take(driver, held, "second", 1, 2)
    assert await unread(driver, own) == ["b", "c"]
    assert [one.name for one in (await driver.engine.journals.read(own)).items] == ["first"]
    assert await counted(driver, own) == (2, 3)
    with pytest.raises(InvalidInput):
        await take(driver, held, "third", 2, 2)
    with pytest.raises(InvalidInput):
        await take(driver, held, "third", 0)


async def test_two_takes_of_one_batch_see_each_other(driver: Driver) -> None:
    own = await driver.submit()
    await send(driver, own, "a")
    await send(driver, own, "b")
    held = await driver.claim()
    both = tuple(await asyncio.gather(take(driver, held, "x", 1), take(driver, held, "y", 2)))
    assert both == (True, True)
    assert await counted(driver, own) == (0, 2)


async def test_a_renewal_is_not_lost_to_a_take(driver: Driver) -> None:
    own = await driver.submit()
    await send(driver, own)
    held = await driver.claim()
    driver.clock.advance(1_000)
    await driver.engine.leases.renew(held.proof, LEASE_MS)
    assert await take(driver, held, "x", 1)
    record = await driver.record(own)
    assert record.lease_until == driver.clock() + LEASE_MS
    assert record.due_at == record.lease_until


async def test_the_mailbox_outlives_attempts_and_is_emptied_by_a_replay(driver: Driver) -> None:
    own = await driver.submit(policy=RETRIES)
    await send(driver, own, id="once")
    held = await driver.claim()
    await driver.engine.outcomes.fail(held.proof, TRANSIENT)
    await driver.pass_time(500)
    held = await driver.claim()
    assert held.record.mail_count == 1
    driver.clock.advance(LEASE_MS)
    await driver.sweep()
    held = await driver.claim()
    assert await unread(driver, own) == ["go"]
    await driver.engine.outcomes.complete(held.proof)
    assert await unread(driver, own) == ["go"]
    await driver.engine.operators.replay(own)
    assert await unread(driver, own) == []
    assert await counted(driver, own) == (0, 1)
    assert await send(driver, own, id="twice") == Accepted("twice", KEPT)


async def test_readers_see_names_ids_times_and_sizes(driver: Driver) -> None:
    own = await driver.submit()
    info = await driver.engine.reads.describe_execution(own)
    assert (info.mail_count, info.mailbox) == (0, ())
    await send(driver, own, "paid", {"n": 1}, "r-1")
    info = await driver.engine.reads.describe_execution(own)
    (kept,) = info.mailbox
    assert (kept.signal_name, kept.signal_id, kept.accepted_at, kept.payload_bytes) == (
        "paid",
        "r-1",
        driver.clock(),
        7,
    )


async def test_a_signal_sent_a_thousand_times_with_one_id_arrives_once(driver: Driver) -> None:
    own = await driver.submit()
    sent = await asyncio.gather(*(send(driver, own, id="one") for _ in range(1_000)))
    assert sent.count(Accepted("one", KEPT)) == 1
    assert sent.count(Duplicate("one")) == 999
    assert await counted(driver, own) == (1, 1)
