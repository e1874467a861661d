"""Many who follow the same thing cost the store no more reads than one."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from flowfabric.backend.base import Backend
from flowfabric.backend.types import EventFilter, EventPage, FrameRange
from flowfabric.core.pages import to_text
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Limits, engine_on
from flowfabric.engine.executions import waits as waits_module
from flowfabric.engine.streams import followers, log_reader, tails
from flowfabric.operations.events import CompletionEvent, Event, EventQuery
from tests.conformance.driver import Driver
from tests.conformance.feeds import SOON_S, following, run_one, take
from tests.conformance.streaming import Waits, append, frame, payloads, tail

MANY = 1_000


@pytest.fixture(autouse=True)
def no_safety_net(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only notifications wake anybody here."""
    for module in (log_reader, tails, waits_module):
        monkeypatch.setattr(module, "SAFETY_NET_S", 600.0)


@pytest.fixture
def waits(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> Waits:
    return Waits(backend.notifier(), monkeypatch)


class Reads:
    """Reads of the log from now on: by the process's reader, and by followers for themselves."""

    def __init__(self, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_reader = self.by_followers = 0
        self._events = backend.events
        monkeypatch.setattr(backend, "events", self._read)

    async def _read(self, cursor: bytes, wanted: EventFilter, limit: int) -> EventPage:
        self.by_followers += bool(wanted.families)
        self.by_reader += not wanted.families
        return await self._events(cursor, wanted, limit)


async def everybody_follows(driver: Driver, waits: Waits, number: int) -> None:
    """Until so many follow the log, and its reader waits at the end."""
    async with asyncio.timeout(SOON_S):
        while driver.engine.events.following < number:  # noqa: ASYNC110
            await asyncio.sleep(0)
    await waits.reach(1)


def waiting_for(namespace: str, position: bytes) -> EventQuery:
    """A poll for completions behind a position."""
    return EventQuery(
        families="completion", namespace=namespace, cursor=to_text(position), wait_ms=30_000
    )


def ids_of(events: list[Event]) -> list[str]:
    return [event.execution_id for event in events if isinstance(event, CompletionEvent)]


async def test_an_entry_is_read_once_for_all_who_wait_for_it(
    driver: Driver, backend: Backend, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    await driver.submit(namespace="mine")
    claimed = await driver.claim(namespace="mine")
    asked = waiting_for("mine", await backend.cursor("now"))
    read = driver.engine.events.read_events
    async with asyncio.timeout(2 * SOON_S), asyncio.TaskGroup() as group:
        waiting = [group.create_task(read(asked)) for _ in range(MANY)]
        await everybody_follows(driver, waits, MANY)
        reads = Reads(backend, monkeypatch)
        await driver.engine.outcomes.complete(claimed.proof)
    assert {tuple(ids_of(task.result().items)) for task in waiting} == {(claimed.execution_id,)}
    # One finds the entry, the next one that there is no more; a store may notify twice.
    assert reads.by_reader <= 4
    assert not reads.by_followers
    assert not driver.engine.events.following


async def test_those_who_ask_for_something_else_are_not_woken(
    driver: Driver, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[frozenset[str] | None] = []
    wake = followers.Follower.wake

    def told(follower: followers.Follower) -> None:
        woken.append(follower.interest.namespaces)
        wake(follower)

    read = driver.engine.events.read_events
    now = await driver.engine.deps.store.backend.cursor("now")
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        waiting = [group.create_task(read(waiting_for("other", now))) for _ in range(50)]
        own = group.create_task(read(waiting_for("mine", now)))
        await everybody_follows(driver, waits, 51)
        monkeypatch.setattr(followers.Follower, "wake", told)
        ended = await run_one(driver, namespace="mine")
        assert ids_of((await own).items) == [ended]
        assert set(woken) == {frozenset({"mine"})}
        for task in waiting:
            task.cancel()


async def test_a_follower_that_falls_behind_reads_on_by_itself(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "MOST_OFFERED", 3)
    async with following(driver, "completion") as slow, following(driver, "completion") as quick:
        both = asyncio.gather(take(slow, 1), take(quick, 1))
        ids = [await run_one(driver)]
        first, _ = await both
        for _ in range(10):
            ids.append(await run_one(driver))
            await take(quick, 1)
        rest = await take(slow, 10)
    assert ids_of(first + rest) == ids


async def test_a_poll_that_comes_back_is_answered_from_what_was_read(
    driver: Driver, backend: Backend, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(driver, "completion") as other, asyncio.timeout(SOON_S):
        waiting = asyncio.ensure_future(take(other, 3))
        await everybody_follows(driver, waits, 1)
        start = to_text(await backend.cursor("now"))
        ids = [await run_one(driver) for _ in range(3)]
        await waiting
        reads = Reads(backend, monkeypatch)
        seen: list[Event] = []
        for _ in ids:
            asked = EventQuery(families="completion", cursor=start, limit=1, wait_ms=10_000)
            page = await driver.engine.events.read_events(asked)
            seen += page.items
            start = page.next_cursor
    assert ids_of(seen) == ids
    assert not reads.by_followers


async def test_a_frame_is_read_once_for_all_tails_of_its_stream(
    driver: Driver, backend: Backend, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_on(backend, limits=Limits(stream_ops=MANY))
    many = Driver(engine, driver.clock, TimerSweep(engine))
    held = (await driver.started()).proof
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        waiting = [
            group.create_task(tail(many, held.execution_id, block_ms=30_000)) for _ in range(MANY)
        ]
        await waits.reach(MANY)
        read, asked = backend.frames, list[FrameRange]()

        async def told(ranges: Sequence[FrameRange]) -> Any:
            asked.extend(ranges)
            return await read(ranges)

        monkeypatch.setattr(backend, "frames", told)
        await append(driver, held, frame(b"news"))
    assert {tuple(payloads(task.result())) for task in waiting} == {(b"news",)}
    assert len(asked) <= 3
    await engine.close()


async def test_an_end_is_read_once_for_all_who_wait_for_it(
    driver: Driver, backend: Backend, waits: Waits, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = await driver.started()
    until_final = driver.engine.waits.until_final
    async with asyncio.timeout(SOON_S), asyncio.TaskGroup() as group:
        waiting = [
            group.create_task(until_final(started.execution_id, 30_000)) for _ in range(MANY)
        ]
        await waits.reach(MANY)
        read, asked = backend.read, list[str]()

        async def told(ids: Any, *rest: Any) -> Any:
            asked.extend(ids)
            return await read(ids, *rest)

        monkeypatch.setattr(backend, "read", told)
        await driver.engine.outcomes.complete(started.proof)
    assert {task.result() for task in waiting} == {"completed"}
    assert len(asked) <= 3
