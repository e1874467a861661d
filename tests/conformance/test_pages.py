"""Pages end by bytes as well as by number, and every list goes on where a page ended."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from flowfabric.core import pages
from flowfabric.core.condition_checks import Fresh
from flowfabric.core.conditions import Count, composite
from flowfabric.core.journal import JournalEntry
from flowfabric.operations.attempts import SuspendOrder
from flowfabric.operations.events import EventQuery
from flowfabric.operations.execution_queries import Search
from flowfabric.operations.flow_queries import FlowSearch
from flowfabric.operations.schedules import NewSchedule
from flowfabric.operations.types import Page
from flowfabric.operations.workers import Registration
from tests.conformance.driver import Driver
from tests.stores import SEARCHABLE

ROOM = 20_000
NUMBER = 12
# Two of them fill a page, with what the members take whose size is bounded.
LARGE = {"app.large": "x" * 8_000}
# Log entries have the searchable tags only.
SEARCHED = min(SEARCHABLE)

Ask = Callable[[str], Awaitable[Page[Any]]]


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", ROOM)


async def walked(ask: Ask) -> list[Any]:
    """All items; no page but one of a single item is larger than a page may be."""
    items: list[Any] = []
    cursor, number = "", 0
    while True:
        page = await ask(cursor)
        assert len(page.items) == 1 or len(msgspec.json.encode(page.items)) <= ROOM
        items += page.items
        number += 1
        cursor = page.next_cursor
        if not cursor:
            assert number > 1
            return items


async def test_searches_and_lists_of_executions_end_by_bytes(driver: Driver) -> None:
    own = {await driver.submit(tags=LARGE) for _ in range(NUMBER)}
    listings = driver.engine.reads

    def search(cursor: str) -> Awaitable[Page[Any]]:
        return listings.find(Search(cursor=cursor, limit=1_000))

    def lane(cursor: str) -> Awaitable[Page[Any]]:
        return listings.list_lane("default", "eligible", cursor=cursor, limit=1_000)

    for ask in (search, lane):
        found = [one.execution_id for one in await walked(ask)]
        assert len(found) == NUMBER
        assert set(found) == own


async def test_a_search_of_flows_ends_by_bytes(driver: Driver) -> None:
    own = set()
    for _ in range(NUMBER):
        flow = await driver.engine.flows.create_flow()
        await driver.engine.flows.set_flow_tags(flow.flow_id, LARGE)
        own.add(flow.flow_id)
    search = driver.engine.flow_reads.search_flows
    found = await walked(lambda cursor: search(FlowSearch(cursor=cursor, limit=1_000)))
    assert sorted(one.flow_id for one in found) == sorted(own)


async def test_a_journal_is_read_in_pages_that_end_by_bytes(driver: Driver) -> None:
    held = await driver.reach("active")
    entries = [JournalEntry("step", number, "d", b"x" * 7_000) for number in range(NUMBER)]
    await driver.engine.journals.append(held, entries)
    journals = driver.engine.journals
    own = held.execution_id
    assert await walked(lambda after: journals.read(own, int(after or 0), 1_000)) == entries
    assert await driver.journal(own) == entries


async def test_an_entry_larger_than_a_page_is_a_page(driver: Driver) -> None:
    held = await driver.reach("active")
    entries = [JournalEntry("step", number, "d", b"x" * ROOM) for number in range(3)]
    await driver.engine.journals.append(held, entries)
    for number, entry in enumerate(entries):
        page = await driver.engine.journals.read(held.execution_id, number, 10)
        assert page.items == [entry]
        assert page.next_cursor == ("" if number == 2 else str(number + 1))


async def test_events_come_in_pages_that_end_by_bytes(driver: Driver) -> None:
    events = driver.engine.events
    begin = (await events.read_events()).next_cursor
    own = [await driver.submit(tags={SEARCHED: "x" * 8_000}) for _ in range(NUMBER)]
    for execution_id in own:
        await driver.engine.outcomes.cancel_execution(execution_id, "")
    found: list[str] = []
    cursor, sizes = begin, list[int]()
    while len(found) < NUMBER:
        asked = EventQuery(families="completion", cursor=cursor, limit=1_000)
        page = await events.read_events(asked)
        assert page.next_cursor != cursor
        found += [getattr(item, "execution_id", "") for item in page.items]
        sizes.append(len(page.items))
        cursor = page.next_cursor
    assert sorted(found) == sorted(own)
    assert 0 < max(sizes) < NUMBER


async def test_schedules_are_listed_in_pages_that_end_by_bytes(driver: Driver) -> None:
    schedules = driver.engine.schedules
    for number in range(NUMBER):
        new = NewSchedule(kind="k", every_ms=60_000, payload=b"x" * 5_000)
        await schedules.put(f"s{number:02}", new)
    found = await walked(lambda cursor: schedules.list_schedules("", cursor, 1_000))
    assert [one.schedule_id for one in found] == [f"s{number:02}" for number in range(NUMBER)]


async def test_workers_are_listed_in_pages_that_end_by_bytes(driver: Driver) -> None:
    workers = driver.engine.workers
    offered = frozenset(f"{number:030}" for number in range(100))
    for number in range(NUMBER):
        await workers.register_worker(
            Registration(
                worker_id="w",
                worker_instance_id=f"w-{number:02}",
                lanes=frozenset({"default"}),
                capabilities=offered,
                ttl_ms=60_000,
            )
        )
    found = await walked(lambda after: workers.list_workers("default", after, 1_000))
    assert [one.worker_instance_id for one in found] == [f"w-{one:02}" for one in range(NUMBER)]


async def test_open_waitpoints_are_listed_in_pages_that_end_by_bytes(driver: Driver) -> None:
    held = await driver.reach("active")
    keys = tuple(f"{number:01000}" for number in range(30))
    waitpoints = tuple(Fresh(waitpoint_key=key) for key in keys)
    condition = composite(Count(1, "DistinctSignals", keys))
    order = SuspendOrder(resume_condition=condition, waitpoints=waitpoints)
    await driver.engine.suspensions.suspend(held, order)
    listed = driver.engine.waitpoints.list_pending_waitpoints
    found = await walked(lambda after: listed(held.execution_id, after, 1_000))
    assert sorted(one.waitpoint_key for one in found) == sorted(keys)


async def test_a_history_comes_in_pages_that_end_by_bytes(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = await driver.submit()
    for _ in range(NUMBER):
        await driver.claim()
        await driver.engine.leases.revoke_lease(own)
    reads = driver.engine.reads
    whole = (await reads.history(own)).items
    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", 1_000)
    found, cursor, number = list(whole[:0]), "", 0
    while cursor or not number:
        page = await reads.history(own, cursor)
        assert len(msgspec.json.encode(page.items)) <= 1_000
        found += page.items
        cursor, number = page.next_cursor, number + 1
    assert found == whole
    assert number > 2
