"""Subscribers beside each other: from every position, while others write, each its own events."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from flowfabric.core.pages import to_text
from flowfabric.core.plan import Family
from flowfabric.core.rules.attempts import Failure
from flowfabric.engine.streams import log_reader
from flowfabric.operations.events import (
    CompletionEvent,
    Event,
    FlowEvent,
    LeaseEvent,
    OperatorEvent,
)
from tests.conformance.driver import LEASE_MS, Driver, unfenced
from tests.conformance.feeds import EVERYTHING, SOON_S, following, run_one, take
from tests.conformance.graphs import Graph, Member


@pytest.fixture(autouse=True)
def no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a notification wakes a reader here."""
    monkeypatch.setattr(log_reader, "SAFETY_NET_S", 600.0)


async def everything(driver: Driver, *families: Family, **scope: Any) -> list[Event]:
    """All events so far, up to the mark that this call itself leaves in the log."""
    mark = await run_one(driver, namespace="mark")
    events: list[Event] = []
    wanted = {*families, "completion"} if families else EVERYTHING
    async with following(driver, *wanted, cursor="oldest", **scope) as subscription:
        while not events or getattr(events[-1], "execution_id", "") != mark:
            events += await take(subscription, 1)
    return [
        event
        for event in events
        if getattr(event, "execution_id", "") != mark
        and (not families or _family(event) in families)
    ]


def _family(event: Event) -> str:
    return str(event.__struct_config__.tag)


async def busy_life(driver: Driver, **fields: Any) -> None:
    """Something of every family: completions, leases, an operator's acts, a flow."""
    await run_one(driver, **fields)
    changed = await driver.submit(priority=1, **fields)
    await driver.engine.operators.set_priority(changed, 5)
    await driver.engine.outcomes.cancel(unfenced(changed), "enough")
    lost = await driver.submit(lane="losing", **fields)
    theirs = {"lanes": ("losing",)} | fields
    await driver.claim(**theirs)
    await driver.pass_time(LEASE_MS)
    await driver.claim(**theirs)
    await driver.engine.leases.revoke_lease(lost)
    again = await driver.claim(**theirs)
    await driver.engine.outcomes.fail(again.proof, Failure("broken", "permanent"))
    await driver.engine.operators.replay(lost)
    await driver.engine.outcomes.cancel(unfenced(lost), "enough")
    flow = await driver.graph(Graph(members={"only": Member()}, flow=fields))
    await flow.complete("only")


# ---- positions


@pytest.mark.parametrize("family", ["completion", "lease", "operator", "flow"])
async def test_from_every_position_nothing_is_skipped_and_nothing_repeated(
    driver: Driver, family: Family
) -> None:
    await busy_life(driver)
    events = await everything(driver, family)
    assert events
    await busy_life(driver)
    more = await everything(driver, family)
    assert more[: len(events)] == events
    for place, event in enumerate(events):
        rest = more[place + 1 :]
        async with following(driver, family, cursor=event.cursor) as subscription:
            assert await take(subscription, len(rest)) == rest


async def test_of_several_families_resuming_repeats_at_most_one_entry(driver: Driver) -> None:
    await busy_life(driver)
    events = await everything(driver)
    cursors = [event.cursor for event in events]
    for place, event in enumerate(events):
        async with following(driver, cursor=event.cursor) as subscription:
            left = len(events) - place - 1
            again = await take(subscription, left) if left else []
        # Behind the last event of an entry its own cursor leads exactly on; before that, the
        # events of the entry come once more.
        start = (
            place + 1 if event.cursor not in cursors[:place] else cursors.index(event.cursor) + 1
        )
        assert again == events[start : start + left]
    assert all(
        earlier == later or cursors.index(earlier) < cursors.index(later)
        for earlier, later in pairwise(cursors)
    )


async def test_events_of_every_partition_are_seen(driver: Driver) -> None:
    ids = [await run_one(driver, lane=f"lane {n}") for n in range(40)]
    assert len({own.partition("}")[0] for own in ids}) > 20
    events = await everything(driver, "completion")
    assert [event.execution_id for event in events if isinstance(event, CompletionEvent)] == ids


# ---- beside each other


def by_partition(events: list[Event]) -> dict[str, list[Event]]:
    """Only the events of one partition come to everybody in the same order."""
    found: dict[str, list[Event]] = {}
    for event in events:
        assert isinstance(event, CompletionEvent | LeaseEvent)
        tag, _, _ = event.execution_id.rpartition(":")
        found.setdefault(tag, []).append(msgspec.structs.replace(event, cursor=""))
    return found


async def test_many_subscribers_each_see_everything_while_others_write(driver: Driver) -> None:
    n = 60

    async def follow(families: Sequence[Family], total: int) -> list[Event]:
        async with following(driver, *families) as subscription:
            began.release()
            return await take(subscription, total)

    began = asyncio.Semaphore(0)
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        completions = [group.create_task(follow(["completion"], n)) for _ in range(5)]
        leases = [group.create_task(follow(["lease"], 2 * n)) for _ in range(5)]
        both = [group.create_task(follow(["lease", "completion"], 3 * n)) for _ in range(5)]
        for _ in range(15):
            await began.acquire()
        ids = await asyncio.gather(*(run_one(driver, lane=f"lane {k % 7}") for k in range(n)))
    for tasks in (completions, leases, both):
        first, *others = (by_partition(task.result()) for task in tasks)
        assert all(other == first for other in others)
    seen = [each for each in completions[0].result() if isinstance(each, CompletionEvent)]
    assert sorted(event.execution_id for event in seen) == sorted(ids)
    for own in ids:
        kinds = [
            event.kind
            for event in leases[0].result()
            if isinstance(event, LeaseEvent) and event.execution_id == own
        ]
        assert kinds == ["acquired", "released"]


async def test_a_reader_that_starts_over_and_over_loses_nothing_to_busy_writers(
    driver: Driver,
) -> None:
    n = 60
    seen: list[str] = []

    async def read_in_pieces() -> None:
        cursor = to_text(await driver.engine.deps.store.backend.cursor("now"))
        began.set()
        while len(seen) < n:
            async with following(driver, "completion", cursor=cursor) as subscription:
                for event in await take(subscription, min(1 + len(seen) % 3, n - len(seen))):
                    assert isinstance(event, CompletionEvent)
                    seen.append(event.execution_id)
                    cursor = event.cursor

    began = asyncio.Event()
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        group.create_task(read_in_pieces())
        await began.wait()
        ids = await asyncio.gather(*(run_one(driver, lane=f"lane {k % 5}") for k in range(n)))
    assert len(seen) == len(set(seen))
    assert sorted(seen) == sorted(ids)


# ---- tenants


async def test_a_tenant_sees_its_own_events_and_no_others(driver: Driver) -> None:
    for namespace in ("theirs", "mine", "mine-too", "min"):
        await busy_life(driver, namespace=namespace)
    own = await driver.submit(namespace="mine")
    claimed = await driver.take(own)
    await driver.engine.outcomes.complete(claimed.proof)
    async with following(driver, cursor="oldest", namespace="mine") as subscription:
        seen: list[Event] = []
        while not seen or not (isinstance(seen[-1], CompletionEvent) and _own(seen[-1], own)):
            seen += await take(subscription, 1)
    backend = driver.engine.deps.store.backend
    families = {type(event) for event in seen}
    assert families == {CompletionEvent, LeaseEvent, OperatorEvent, FlowEvent}
    for event in seen:
        flow_id = getattr(event, "flow_id", "")
        if isinstance(event, FlowEvent):
            (flow,) = await backend.flows([event.flow_id])
            assert flow is not None
            assert flow.namespace == "mine"
        elif not flow_id:
            execution_id = getattr(event, "execution_id", "")
            assert (await driver.record(execution_id)).namespace == "mine"


def _own(event: CompletionEvent, execution_id: str) -> bool:
    return event.execution_id == execution_id


async def test_namespace_and_tag_must_both_hold(driver: Driver) -> None:
    tag = ("app.case", "7")
    for namespace in ("theirs", "mine"):
        for tags in ({}, {"app.case": "8"}, {"app.team": "7"}, {"app.case": "77"}):
            await run_one(driver, namespace=namespace, tags=tags)
    await run_one(driver, namespace="theirs", tags={"app.case": "7"})
    own = await run_one(driver, namespace="mine", tags={"app.case": "7", "app.team": "x"})
    scope: dict[str, Any] = {"namespace": "mine", "instance_tag": tag}
    async with following(driver, cursor="oldest", **scope) as subscription:
        events = await take(subscription, 3)
        last = await run_one(driver, namespace="mine", tags={"app.case": "7"})
        events += await take(subscription, 3)
    assert [getattr(event, "execution_id", "") for event in events] == [own] * 3 + [last] * 3


async def test_a_filtered_cursor_never_shows_what_the_filter_hid(driver: Driver) -> None:
    await run_one(driver, namespace="theirs")
    async with following(driver, "completion", namespace="mine") as subscription:
        own = await run_one(driver, namespace="mine")
        (event,) = await take(subscription, 1)
    await run_one(driver, namespace="theirs")
    last = await run_one(driver, namespace="mine")
    scope: dict[str, Any] = {"cursor": event.cursor, "namespace": "mine"}
    async with following(driver, "completion", **scope) as subscription:
        (later,) = await take(subscription, 1)
    assert isinstance(event, CompletionEvent)
    assert isinstance(later, CompletionEvent)
    assert (event.execution_id, later.execution_id) == (own, last)
