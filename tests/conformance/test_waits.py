"""Waiting for an end, for a page of the log, and for work that one may lose interest in."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import pytest
from msgspec.structs import replace

from flowfabric.backend.base import end_topic
from flowfabric.core.rules.attempts import Failure
from flowfabric.engine.executions import waits as waits_module
from flowfabric.engine.executions.waits import WITH_RESULT
from flowfabric.engine.streams import log_reader
from flowfabric.errors import ExecutionNotFound, InvalidInput
from flowfabric.operations.events import CompletionEvent, EventQuery
from flowfabric.operations.execution_queries import ExecutionQueries
from flowfabric.operations.executions import Submission
from flowfabric.operations.streams import Streams, Tail
from flowfabric.operations.workers import ClaimOrder
from tests.conformance.driver import Driver
from tests.conformance.streaming import SOON_S, Waits, append, frame, payloads
from tests.proofs import proves

PATIENT: Final = ClaimOrder(
    worker_id="w", worker_instance_id="w-1", lanes=("default",), wait_ms=30_000
)
NOBODY = "{fp:3}:11111111-2222-4333-8444-555555555555"


@pytest.fixture(autouse=True)
def no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only notifications wake a wait here."""
    monkeypatch.setattr(waits_module, "SAFETY_NET_S", 600.0)
    monkeypatch.setattr(log_reader, "SAFETY_NET_S", 600.0)


@proves(ExecutionQueries.state)
async def test_a_wait_ends_with_the_execution(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    until_final, outcomes = driver.engine.waits.until_final, driver.engine.outcomes
    seen = Waits(driver.engine.deps.store.backend.notifier(), monkeypatch)
    good, bad = await driver.started(), await driver.started()
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        waiting = [
            group.create_task(until_final(one.execution_id, 30_000)) for one in (good, good, bad)
        ]
        await seen.reach(3)
        await outcomes.complete(good.proof)
        await outcomes.fail(bad.proof, Failure("x", "permanent"))
    assert [task.result() for task in waiting] == ["completed", "completed", "failed"]


async def test_what_has_ended_is_not_waited_for(driver: Driver) -> None:
    started = await driver.started()
    await driver.engine.outcomes.complete(started.proof)
    async with asyncio.timeout(SOON_S):
        state = await driver.engine.waits.until_final(started.execution_id, 30_000)
    assert state == "completed"


async def test_a_wait_whose_time_is_up_answers_the_present_state(driver: Driver) -> None:
    own = await driver.submit()
    assert await driver.engine.waits.until_final(own, 0) == "waiting"
    assert await driver.engine.waits.until_final(own, 1) == "waiting"


async def test_waiting_for_nothing_is_refused(driver: Driver) -> None:
    with pytest.raises(ExecutionNotFound):
        await driver.engine.waits.until_final(NOBODY, 10)
    for wait_ms in (-1, 30_001):
        with pytest.raises(InvalidInput):
            await driver.engine.waits.until_final(NOBODY, wait_ms)


# ---- calls: create and wait in one


async def test_a_call_is_answered_by_the_end_and_looks_once(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, looks = driver.engine.deps.store.backend, list[str]()
    read = backend.read

    async def counted(ids: Sequence[str], *rest: Any) -> Any:
        looks.extend(ids)
        return await read(ids, *rest)

    monkeypatch.setattr(backend, "read", counted)
    monkeypatch.setattr(waits_module, "_FIRST_LOOK_S", 600.0)
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        calling = group.create_task(driver.engine.waits.call(Submission(kind="work"), WITH_RESULT))
        claimed = await driver.engine.claims.claim(PATIENT)
        await driver.engine.outcomes.complete(claimed[0].proof, b"done")
    seen = calling.result()
    assert (seen.record.state, seen.result) == ("completed", b"done")
    assert looks == [seen.record.execution_id]


async def test_an_end_nobody_heard_is_found_by_a_look(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waits_module, "SAFETY_NET_S", 0.1)
    monkeypatch.setattr(waits_module, "end_topic", lambda _: end_topic(NOBODY))
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        calling = group.create_task(driver.engine.waits.call(Submission(kind="work")))
        claimed = await driver.engine.claims.claim(PATIENT)
        await driver.engine.outcomes.complete(claimed[0].proof)
    assert calling.result().record.state == "completed"


async def test_a_call_under_a_key_waits_for_what_the_key_stands_for(driver: Driver) -> None:
    asked = Submission(kind="work", idempotency_key="once", policy={"dedup_window_ms": 60_000})
    first = await driver.engine.executions.create(asked)
    await driver.engine.outcomes.complete((await driver.claim()).proof)
    async with asyncio.timeout(SOON_S):
        seen = await driver.engine.waits.call(asked)
    assert (seen.record.execution_id, seen.record.state) == (first.execution_id, "completed")


async def test_a_call_that_cannot_be_submitted_is_refused(driver: Driver) -> None:
    with pytest.raises(InvalidInput):
        await driver.engine.waits.call(Submission(kind="\0"))


@proves(Streams.read_events)
async def test_a_page_of_the_log_is_read_without_waiting(driver: Driver) -> None:
    events = driver.engine.events
    start = (await events.read_events()).next_cursor
    asked = EventQuery(families="completion", cursor=start)
    assert (await events.read_events(asked)).items == []
    ids = []
    for namespace in ("alpha", "beta"):
        own = await driver.submit(namespace=namespace)
        claimed = await driver.take(own)
        await driver.engine.outcomes.complete(claimed.proof)
        ids.append(own)
    page = await events.read_events(asked)
    told = [one.execution_id for one in page.items if isinstance(one, CompletionEvent)]
    assert told == ids
    behind = replace(asked, cursor=page.next_cursor)
    assert (await events.read_events(behind)).items == []
    read = driver.engine.use_case(Streams.read_events)
    (only,) = (await read(asked, visible=frozenset({"beta"}))).items
    assert only.execution_id == ids[1]


async def test_a_page_of_the_log_is_awaited_until_something_asked_for_is_logged(
    driver: Driver,
) -> None:
    events = driver.engine.events
    start = (await events.read_events()).next_cursor
    asked = EventQuery(families="completion", cursor=start, wait_ms=20_000)
    waiting = asyncio.create_task(events.read_events(asked))
    own = await driver.submit()
    await driver.engine.outcomes.complete((await driver.take(own)).proof)
    async with asyncio.timeout(20):
        (event,) = (await waiting).items
    assert isinstance(event, CompletionEvent)
    assert event.execution_id == own
    at_once = replace(asked, cursor=event.cursor, wait_ms=1)
    assert (await events.read_events(at_once)).items == []


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        (EventQuery(families="completion,weather"), "families"),
        (EventQuery(tag="app.other=1"), "tag"),
        (EventQuery(tag="app.other"), "tag"),
        (EventQuery(cursor="!!"), "cursor"),
        (EventQuery(cursor="7g"), "cursor"),
        (EventQuery(limit=0), "limit"),
        (EventQuery(limit=1_001), "limit"),
        (EventQuery(wait_ms=30_001), "wait_ms"),
    ],
)
async def test_a_page_of_the_log_checks_what_is_asked(
    driver: Driver, asked: EventQuery, match: str
) -> None:
    with pytest.raises(InvalidInput, match=match):
        await driver.engine.events.read_events(asked)


async def test_a_follower_takes_no_permit_of_the_tails(driver: Driver) -> None:
    held = (await driver.started()).proof
    await append(driver, held, frame(b"a"))
    streams = driver.engine.streams
    before = streams.permits.taken
    page = await streams.follow_stream(held.execution_id, 0, Tail(block_ms=1))
    assert payloads(page) == [b"a"]
    assert streams.permits.taken == before


async def test_a_claim_is_left_by_who_lost_interest(driver: Driver) -> None:
    order = ClaimOrder(worker_id="w", worker_instance_id="w-1", lanes=("idle",), wait_ms=30_000)
    leaving: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        claim = group.create_task(driver.engine.claims.claim(order, leaving))
        leaving.set_result(None)
    assert claim.result() == []


async def test_a_partition_is_listed_for_some_namespaces(driver: Driver) -> None:
    own = await driver.submit(namespace="alpha", lane="same")
    other = await driver.submit(namespace="beta", lane="same")
    partition = int(own[4:].partition("}")[0])
    reads = driver.engine.reads
    everything = await reads.list_executions(partition)
    assert set(everything.items) == {own, other}
    list_visible: Any = reads.list_executions
    some = await list_visible(partition, visible=frozenset({"alpha"}))
    assert some.items == [own]


async def test_lanes_of_all_namespaces_are_listed(driver: Driver) -> None:
    for namespace in ("alpha", "beta"):
        await driver.submit(namespace=namespace, lane="work")
    await driver.engine.lanes.drain()
    found = await driver.engine.lanes.list_all(10)
    assert {("alpha", "work"), ("beta", "work")} <= set(found)
    assert len(await driver.engine.lanes.list_all(1)) == 1
