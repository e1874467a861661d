"""What is asked of some partitions only: timers, retention, events and searches keep to them,
whoever else has a share of the store."""

from uuid import uuid4

from flowfabric.backend.types import EventFilter, Filter, ListRequest
from flowfabric.core.ids import compose, partition_of
from tests.conformance.driver import Driver
from tests.conformance.graphs import FlowUnderTest, chain

DAY_MS = 86_400_000
MANY = 1_200
MINE, OTHERS = 7, 200


async def scattered(driver: Driver, count: int, **fields: object) -> list[str]:
    """Executions of two partitions in turn, the first in the one asked for."""
    homes = [MINE if n % 2 == 0 else OTHERS for n in range(count)]
    return [
        await driver.submit(execution_id=compose(home, str(uuid4())), **fields) for home in homes
    ]


async def due_in(driver: Driver, partitions: frozenset[int], limit: int) -> list[str]:
    """All that is due there, page by page, without repeats."""
    backend = driver.engine.deps.store.backend
    found: dict[str, None] = {}
    after: tuple[int, str] | None = None
    while True:
        page = await backend.due(limit, after, partitions)
        found.update(dict.fromkeys(record.execution_id for record in page.records))
        if page.next_after is None:
            return list(found)
        assert after is None or page.next_after > after
        after = page.next_after


async def test_timers_of_some_partitions(driver: Driver) -> None:
    ids = await scattered(driver, 10, delay_until=driver.clock() + 1_000)
    driver.clock.advance(1_000)
    for limit in (2, 100):
        assert set(await due_in(driver, frozenset({MINE}), limit)) == set(ids[::2])
        assert set(await due_in(driver, frozenset({MINE, OTHERS}), limit)) == set(ids)
        assert set(await due_in(driver, frozenset(), limit)) == set(ids)
        assert await due_in(driver, frozenset({MINE + 1}), limit) == []


async def test_a_timer_behind_very_many_of_others_is_found(driver: Driver) -> None:
    soon = driver.clock() + 1_000
    for _ in range(MANY):
        await driver.submit(execution_id=compose(OTHERS, str(uuid4())), delay_until=soon)
    last = await driver.submit(execution_id=compose(MINE, str(uuid4())), delay_until=soon + 1)
    driver.clock.advance(2_000)
    assert await due_in(driver, frozenset({MINE}), 10) == [last]


async def test_retention_of_some_partitions(driver: Driver) -> None:
    backend = driver.engine.deps.store.backend
    ids = await scattered(driver, 6)
    for execution_id in ids:
        await driver.engine.outcomes.complete((await driver.take(execution_id)).proof)
    driver.clock.advance(DAY_MS)
    assert await backend.purge(2, frozenset({MINE})) == 2
    assert await backend.purge(10, frozenset({MINE})) == 1
    left = await backend.read(ids, frozenset())
    assert [seen is not None for seen in left] == [False, True] * 3
    assert await backend.purge(10) == 3


async def elsewhere(driver: Driver, flow: FlowUnderTest) -> FlowUnderTest:
    """A flow of another partition than this one."""
    home = partition_of(flow.ids["a"])
    while True:
        other = await driver.graph(chain("a", "b"))
        if partition_of(other.ids["a"]) != home:
            return other


async def test_events_of_some_partitions_tell_of_their_flows_only(driver: Driver) -> None:
    mine = await driver.graph(chain("a", "b"))
    other = await elsewhere(driver, mine)
    for flow in (other, mine):
        await driver.engine.outcomes.cancel((await driver.take(flow.ids["a"])).proof, "enough")
    backend = driver.engine.deps.store.backend
    wanted = EventFilter(partitions=frozenset({partition_of(mine.ids["a"])}))
    page = await backend.events(await backend.cursor("oldest"), wanted, 500)
    assert {event.entry.flow_id for event in page.events} == {mine.flow_id}
    assert "finished" in {event.entry.kind for event in page.events}


async def test_a_search_in_one_partition(driver: Driver) -> None:
    ids = await scattered(driver, 6)
    backend = driver.engine.deps.store.backend
    found = []
    cursor = ""
    while True:
        asked = ListRequest(filter=Filter(partition=MINE), order="created", cursor=cursor, limit=2)
        page = await backend.search(asked)
        found += [record.execution_id for record in page.records]
        cursor = page.next_cursor
        if not cursor:
            break
    assert found == sorted(ids[::2])
