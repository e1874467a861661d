"""Subscriptions: every event once, from any position, for whoever may see it."""

import asyncio
from contextlib import aclosing

import pytest

from flowfabric.backend.types import EventFilter
from flowfabric.core.pages import to_text
from flowfabric.core.retention import LogLimits
from flowfabric.core.rules.attempts import Failure
from flowfabric.engine.streams import log_reader
from flowfabric.errors import InvalidInput
from flowfabric.operations.events import (
    BackpressureEvent,
    CompletionEvent,
    Cursor,
    EventScope,
    FlowEvent,
    LeaseEvent,
    OperatorEvent,
)
from tests.conformance.driver import LEASE_MS, Driver, refused, unfenced
from tests.conformance.feeds import EVERYTHING, SOON_S, following, run_one, take
from tests.conformance.graphs import Graph, Member, chain


@pytest.fixture(autouse=True)
def no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a notification wakes a reader here."""
    monkeypatch.setattr(log_reader, "SAFETY_NET_S", 600.0)


# ---- positions


async def test_an_empty_cursor_means_from_this_call_on(driver: Driver) -> None:
    await run_one(driver)
    async with following(driver, "completion") as subscription:
        second = await run_one(driver)
        (event,) = await take(subscription, 1)
    assert isinstance(event, CompletionEvent)
    assert event.execution_id == second


async def test_from_the_oldest_on_everything_is_seen_in_order(driver: Driver) -> None:
    ids = [await run_one(driver) for _ in range(3)]
    async with following(driver, "completion", cursor="oldest") as subscription:
        events = await take(subscription, 3)
    assert [event.execution_id for event in events if isinstance(event, CompletionEvent)] == ids


async def test_a_saved_cursor_neither_skips_nor_repeats(driver: Driver) -> None:
    ids = [await run_one(driver) for _ in range(5)]
    seen: list[str] = []
    cursor: Cursor = "oldest"
    for _ in ids:
        async with following(driver, "completion", cursor=cursor) as subscription:
            (event,) = await take(subscription, 1)
        assert isinstance(event, CompletionEvent)
        seen.append(event.execution_id)
        cursor = event.cursor
    assert seen == ids


async def test_resuming_between_the_families_of_one_entry_repeats_and_never_loses(
    driver: Driver,
) -> None:
    await run_one(driver)
    async with following(driver, "completion", "lease", cursor="oldest") as subscription:
        acquired, first, second = await take(subscription, 3)
    assert {type(first), type(second)} == {CompletionEvent, LeaseEvent}
    assert first.cursor == acquired.cursor
    async with following(driver, "completion", "lease", cursor=first.cursor) as subscription:
        again = await take(subscription, 2)
    assert again == [first, second]
    await run_one(driver)
    async with following(driver, "completion", cursor=second.cursor) as subscription:
        (later,) = await take(subscription, 1)
    assert later.cursor != second.cursor


@pytest.mark.parametrize("cursor", [b"x", b"\xee" + bytes(8), bytes(100)])
async def test_a_foreign_cursor_is_refused_at_once(driver: Driver, cursor: bytes) -> None:
    with refused(InvalidInput):
        await driver.engine.events.subscribe(EVERYTHING, cursor=to_text(cursor))


async def test_filtered_entries_advance_the_position(driver: Driver) -> None:
    async with following(driver, "completion", namespace="mine") as subscription:
        for _ in range(300):
            await run_one(driver, namespace="theirs")
        own = await run_one(driver, namespace="mine")
        (event,) = await take(subscription, 1)
    assert isinstance(event, CompletionEvent)
    assert event.execution_id == own


async def test_a_cursor_older_than_the_log_is_told_what_it_missed(driver: Driver) -> None:
    for _ in range(2):
        await run_one(driver)
    async with following(driver, "completion", cursor="oldest") as subscription:
        (first,) = await take(subscription, 1)
    driver.clock.advance(8 * 86_400_000)
    await driver.engine.deps.store.backend.purge(100)
    kept = await run_one(driver)
    async with following(driver, "completion", cursor=first.cursor) as subscription:
        async with asyncio.timeout(SOON_S):
            assert isinstance(await anext(subscription), BackpressureEvent)
        (event,) = await take(subscription, 1)
    assert isinstance(event, CompletionEvent)
    assert event.execution_id == kept
    async with following(driver, "completion", cursor="oldest") as subscription:
        assert await take(subscription, 1) == [event]


async def test_the_log_keeps_no_more_entries_than_it_may(driver: Driver) -> None:
    flow = await driver.graph(chain(*"abcdefghijkl"))
    backend, own = driver.engine.deps.store.backend, flow.flow_id
    for _ in range(12):
        await driver.engine.outcomes.complete((await driver.claim()).proof)
    partition = driver.engine.deps.counts.of_flow(own)
    before = await logged(driver, partition)
    assert len(before) == 12
    await backend.purge(0, log=LogLimits(keep=5))
    after = await logged(driver, partition)
    assert 0 < len(after) <= 5
    assert after == before[-len(after) :]
    await backend.purge(0, log=LogLimits(keep=5))
    assert await logged(driver, partition) == after


async def logged(driver: Driver, partition: int) -> list[str]:
    scope = EventFilter(partitions=frozenset({partition}), families=frozenset({"completion"}))
    backend = driver.engine.deps.store.backend
    page = await backend.events(await backend.cursor("oldest"), scope, 100)
    return [one.entry.execution_id for one in page.events]


# ---- waking


async def test_a_waiting_subscriber_is_woken(driver: Driver) -> None:
    async with following(driver, "completion") as subscription, asyncio.TaskGroup() as group:
        waiting = group.create_task(take(subscription, 1))
        await asyncio.sleep(0)
        execution_id = await run_one(driver)
    (event,) = waiting.result()
    assert isinstance(event, CompletionEvent)
    assert event.execution_id == execution_id


async def test_subscribers_are_independent(driver: Driver) -> None:
    async with following(driver, "completion") as slow, following(driver, "completion") as quick:
        ids = [await run_one(driver) for _ in range(3)]
        assert len(await take(quick, 3)) == 3
        events = await take(slow, 3)
    assert [event.execution_id for event in events if isinstance(event, CompletionEvent)] == ids


async def test_more_events_than_one_page_arrive_in_order(driver: Driver) -> None:
    async with following(driver, "lease") as subscription:
        ids = [await run_one(driver) for _ in range(300)]
        async with asyncio.timeout(30):
            events = [await anext(subscription) for _ in range(600)]
    leases = [event for event in events if isinstance(event, LeaseEvent)]
    assert [event.execution_id for event in leases[::2]] == ids
    assert {event.kind for event in leases[::2]} == {"acquired"}
    assert {event.kind for event in leases[1::2]} == {"released"}


# ---- scope


async def test_a_namespace_hides_all_others(driver: Driver) -> None:
    await run_one(driver, namespace="theirs")
    own = await run_one(driver, namespace="mine")
    await run_one(driver)
    async with following(driver, cursor="oldest", namespace="mine") as subscription:
        events = await take(subscription, 3)
        last = await run_one(driver, namespace="mine")
        events += await take(subscription, 1)
    assert [getattr(event, "execution_id", None) for event in events] == [own, own, own, last]


async def test_an_instance_tag_hides_entries_without_it(driver: Driver) -> None:
    await run_one(driver)
    await run_one(driver, tags={"app.case": "8"})
    await run_one(driver, tags={"app.team": "7"})
    own = await run_one(driver, tags={"app.case": "7"})
    tag = ("app.case", "7")
    async with following(driver, "completion", cursor="oldest", instance_tag=tag) as subscription:
        (event,) = await take(subscription, 1)
    assert isinstance(event, CompletionEvent)
    assert event.execution_id == own


async def test_a_tag_that_is_not_searchable_is_refused(driver: Driver) -> None:
    scope = EventScope(instance_tag=("app.other", "1"))
    with refused(InvalidInput):
        await driver.engine.events.subscribe(EVERYTHING, scope)


async def test_partitions_may_be_chosen(driver: Driver) -> None:
    own = await run_one(driver, lane="hot")
    await run_one(driver, lane="gpu")
    partitions = frozenset({205})
    async with following(
        driver, "completion", cursor="oldest", partitions=partitions
    ) as subscription:
        (event,) = await take(subscription, 1)
        again = await run_one(driver, lane="hot")
        (later,) = await take(subscription, 1)
    assert isinstance(event, CompletionEvent)
    assert isinstance(later, CompletionEvent)
    assert (event.execution_id, later.execution_id) == (own, again)


# ---- what is told


async def completions(driver: Driver, n: int) -> list[CompletionEvent]:
    subscription = await driver.engine.events.subscribe({"completion"}, cursor="oldest")
    async with aclosing(subscription):
        events = await take(subscription, n)
    return [event for event in events if isinstance(event, CompletionEvent)]


async def leases(driver: Driver, n: int) -> list[LeaseEvent]:
    subscription = await driver.engine.events.subscribe({"lease"}, cursor="oldest")
    async with aclosing(subscription):
        events = await take(subscription, n)
    return [event for event in events if isinstance(event, LeaseEvent)]


@pytest.mark.parametrize(
    ("situation", "outcome"),
    [
        ("completed", "success"),
        ("failed", "failure"),
        ("cancelled", "cancelled"),
        ("expired", "expired"),
    ],
)
async def test_every_end_is_a_completion(driver: Driver, situation: str, outcome: str) -> None:
    held = await driver.reach(situation)
    (event,) = await completions(driver, 1)
    assert (event.execution_id, event.flow_id) == (held.execution_id, "")
    assert (event.outcome, event.at) == (outcome, driver.clock())


async def test_a_cancelled_execution_nobody_held_has_no_lease_event(driver: Driver) -> None:
    execution_id = await driver.submit()
    await driver.engine.outcomes.cancel(unfenced(execution_id), "no longer needed")
    (event,) = await completions(driver, 1)
    assert event.outcome == "cancelled"
    await run_one(driver)
    acquired, _ = await leases(driver, 2)
    assert acquired.execution_id != execution_id


async def test_a_scheduled_retry_is_no_completion(driver: Driver) -> None:
    retried = await driver.reach("backoff")
    done = await driver.reach("completed")
    (event,) = await completions(driver, 1)
    assert event.execution_id == done.execution_id
    assert event.execution_id != retried.execution_id


async def test_the_life_of_a_lease(driver: Driver) -> None:
    first = await driver.started()
    await driver.pass_time(LEASE_MS)
    second = await driver.claim(worker_instance_id="pool-2")
    await driver.engine.leases.revoke_lease(first.execution_id)
    third = await driver.claim(worker_instance_id="pool-3")
    await driver.engine.outcomes.fail(third.proof, Failure("broken", "permanent"))
    acquired, expired, reclaimed, revoked, again, released = await leases(driver, 6)
    assert {event.execution_id for event in (acquired, expired, released)} == {first.execution_id}
    assert (acquired.kind, acquired.lease_id, acquired.worker_instance_id) == (
        "acquired",
        first.proof.lease_id,
        "pool-1",
    )
    assert (expired.kind, expired.lease_id, expired.prev_owner) == (
        "expired",
        first.proof.lease_id,
        "pool-1",
    )
    assert (reclaimed.kind, reclaimed.new_lease_id, reclaimed.new_owner) == (
        "reclaimed",
        second.proof.lease_id,
        "pool-2",
    )
    assert (revoked.kind, revoked.lease_id, revoked.revoked_by) == (
        "revoked",
        second.proof.lease_id,
        "operator",
    )
    assert (again.kind, again.new_owner) == ("reclaimed", "pool-3")
    assert (released.kind, released.reason, released.worker_instance_id) == (
        "released",
        "failed_terminal",
        "pool-3",
    )


async def test_a_resumed_claim_says_so(driver: Driver) -> None:
    first = await driver.started()
    await driver.engine.outcomes.delay(first.proof, for_ms=0)
    await driver.claim()
    acquired, released, resumed = await leases(driver, 3)
    assert (acquired.reason, released.reason) == ("", "worker_delay")
    assert (resumed.kind, resumed.reason) == ("acquired", "claim_resumed")


async def test_operators_acts(driver: Driver) -> None:
    execution_id = await driver.submit(priority=1)
    await driver.engine.operators.set_priority(execution_id, 5)
    claimed = await driver.claim()
    await driver.engine.outcomes.complete(claimed.proof)
    await driver.engine.operators.replay(execution_id)
    async with following(driver, "operator", cursor="oldest") as subscription:
        changed, replayed = await take(subscription, 2)
    assert isinstance(changed, OperatorEvent)
    assert isinstance(replayed, OperatorEvent)
    assert (changed.event_type, changed.execution_id) == ("priority_changed", execution_id)
    assert changed.details == {"old_priority": "1", "new_priority": "5"}
    assert replayed.event_type == "replayed"
    assert replayed.details == {"branch": "normal", "groups_reset": "0"}
    events = await leases(driver, 3)
    assert (events[-1].kind, events[-1].replay_count) == ("replay_initiated", 1)
    assert events[-1].replay_type == "normal"


async def test_a_flow_tells_its_end_and_its_members_ends(driver: Driver) -> None:
    flow = await driver.graph(chain("a", "b"))
    await flow.fail("a")
    async with following(driver, "completion", "flow", cursor="oldest") as subscription:
        events = await take(subscription, 3)
    ends = {
        event.execution_id: (event.outcome, event.flow_id)
        for event in events
        if isinstance(event, CompletionEvent)
    }
    assert ends == {
        flow.ids["a"]: ("failure", flow.flow_id),
        flow.ids["b"]: ("skipped", flow.flow_id),
    }
    (finished,) = [event for event in events if isinstance(event, FlowEvent)]
    assert (finished.flow_id, finished.event, finished.state) == (
        flow.flow_id,
        "finished",
        "failed",
    )


async def test_a_flow_that_goes_on_tells_nothing(driver: Driver) -> None:
    open_flow = await driver.graph(Graph(members={"a": Member(), "b": Member()}))
    await open_flow.complete("a")
    closed = await driver.graph(Graph(members={"c": Member()}))
    await closed.complete("c")
    async with following(driver, "flow", cursor="oldest") as subscription:
        (event,) = await take(subscription, 1)
    assert isinstance(event, FlowEvent)
    assert (event.flow_id, event.state) == (closed.flow_id, "completed")


async def test_writers_at_once_lose_nothing(driver: Driver) -> None:
    async with following(driver, "completion") as subscription:
        ids = await asyncio.gather(*(run_one(driver, lane=f"lane {n % 7}") for n in range(50)))
        async with asyncio.timeout(20):
            seen = [await anext(subscription) for _ in ids]
    assert sorted(event.execution_id for event in seen if isinstance(event, CompletionEvent)) == (
        sorted(ids)
    )
