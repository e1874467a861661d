"""The log of a partition: how it is trimmed, and what becomes of ids when the clock goes back."""

from typing import Any

import pytest

from flowfabric.backend.types import EventFilter
from flowfabric.backend.valkey import feed
from flowfabric.backend.valkey.fan_out import fetch, fetch_from_nodes
from flowfabric.backend.valkey.feed import Place, read_positions
from flowfabric.core.retention import LogLimits
from tests.clock import VirtualClock
from tests.conformance.driver import Driver
from tests.valkey_server import ValkeyServer

DAY_MS = 86_400_000
# Of the bucket that all partitions share.
TAG = "{fp:0}"


def backend_of(driver: Driver) -> Any:
    return driver.engine.deps.store.backend


async def length(driver: Driver) -> int:
    read = ("XLEN", f"ff:ev:{TAG}")
    (found,) = (await fetch(backend_of(driver)._calls, [read])).checked()
    return int(found)


async def trim(driver: Driver, keep: int, keep_ms: int) -> int:
    """How many entries a purge drops that is to keep so many, and none that is older."""
    before = await length(driver)
    await backend_of(driver).purge(0, log=LogLimits(keep_ms, keep))
    return before - await length(driver)


async def entries(driver: Driver, cursor: bytes) -> tuple[int, bool]:
    page = await backend_of(driver).events(cursor, EventFilter(), 100)
    return len(page.events), page.missed


async def write(driver: Driver, n: int) -> None:
    """So many entries of the log, a millisecond apart."""
    for _ in range(n):
        driver.clock.advance(1)
        await driver.engine.outcomes.cancel(await driver.reach("waiting"), "enough")


async def test_the_oldest_go_when_there_are_too_many(driver: Driver) -> None:
    start = await backend_of(driver).cursor("oldest")
    await write(driver, 5)
    assert await trim(driver, 5, DAY_MS) == 0
    assert await entries(driver, start) == (5, False)
    assert await trim(driver, 2, DAY_MS) == 3
    assert await entries(driver, start) == (2, True)
    assert await entries(driver, await backend_of(driver).cursor("oldest")) == (2, False)


async def test_a_reader_at_the_very_edge_missed_nothing(driver: Driver) -> None:
    await write(driver, 2)
    edge = await backend_of(driver).cursor("now")
    await write(driver, 2)
    assert await trim(driver, 2, DAY_MS) == 2
    assert await entries(driver, edge) == (2, False)


async def test_the_later_of_age_and_number_counts(driver: Driver) -> None:
    await write(driver, 3)
    driver.clock.advance(1_000)
    await write(driver, 3)
    assert await trim(driver, 5, 500) == 3
    await write(driver, 3)
    assert await trim(driver, 2, 500) == 4


async def test_an_empty_log_keeps_its_place(driver: Driver) -> None:
    await write(driver, 3)
    seen = await backend_of(driver).cursor("now")
    assert await trim(driver, 0, DAY_MS) == 3
    assert await backend_of(driver).cursor("now") == seen
    assert await backend_of(driver).cursor("oldest") == seen
    assert await entries(driver, seen) == (0, False)


async def test_a_clock_that_goes_back_keeps_the_order(driver: Driver, clock: VirtualClock) -> None:
    await write(driver, 1)
    first = read_positions(await backend_of(driver).cursor("now"))[0]
    clock.advance(-60_000)
    start = await backend_of(driver).cursor("now")
    await write(driver, 2)
    last = read_positions(await backend_of(driver).cursor("now"))[0]
    assert (last.ms, last.seq) == (first.ms, first.seq + 2)
    assert await entries(driver, start) == (2, False)


async def test_a_cursor_of_a_log_that_is_gone_begins_anew(
    driver: Driver, server: ValkeyServer
) -> None:
    await write(driver, 3)
    seen = await backend_of(driver).cursor("now")
    server.run("DEL", f"ff:ev:{TAG}")
    driver.clock.advance(-1_000)
    await write(driver, 1)
    page = await backend_of(driver).events(seen, EventFilter(), 100)
    assert (len(page.events), page.missed) == (0, True)
    await write(driver, 1)
    assert await entries(driver, page.cursor) == (1, False)
    assert all(isinstance(place, Place) for place in read_positions(page.cursor).values())


async def test_a_trim_during_a_read_is_not_missed(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is dropped between two calls of one page is reported with it."""
    start = await backend_of(driver).cursor("oldest")
    await write(driver, 5)
    ask = fetch_from_nodes
    asked = 0

    async def trimming(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 2:
            assert await trim(driver, 2, DAY_MS) == 3
        return await ask(*args)

    monkeypatch.setattr(feed, "fetch_from_nodes", trimming)
    assert await entries(driver, start) == (2, True)
    assert asked == 2


async def test_a_reader_with_a_place_needs_one_call(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(driver, 1)
    seen = await backend_of(driver).cursor("now")
    await write(driver, 2)
    ask = fetch_from_nodes
    asked = 0

    async def counting(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return await ask(*args)

    monkeypatch.setattr(feed, "fetch_from_nodes", counting)
    assert await entries(driver, seen) == (2, False)
    assert asked == 1
