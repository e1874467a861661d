"""How a subscription reads the log: what it holds, how it wakes, how it breaks off."""

import asyncio
import gc
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Literal, cast

import pytest

from flowfabric.backend.base import LOG_TOPIC, Backend
from flowfabric.backend.coalesce import Store
from flowfabric.backend.notifier import LocalNotifier, LocalSubscription
from flowfabric.backend.types import Description, EventFilter, EventPage, StoredEvent
from flowfabric.core.events import LogEntry
from flowfabric.core.ids import PartitionCounts
from flowfabric.core.pages import to_text
from flowfabric.core.queues import QueueFilter
from flowfabric.engine.deps import Deps
from flowfabric.engine.streams import log_reader as module
from flowfabric.engine.streams.events import Events, Subscription
from flowfabric.errors import (
    InvalidInput,
    StreamDisconnected,
    TransportFault,
)
from flowfabric.operations.events import BackpressureEvent, CompletionEvent, CorruptionEvent
from tests.unit.engine.nostore import MEMORY

ID = "{fp:7}:00000000-0000-4000-8000-000000000001"
SOON_S = 20.0


class CountingNotifier(LocalNotifier):
    def __init__(self) -> None:
        super().__init__()
        self.open: set[LocalSubscription] = set()

    def subscribe(self, *names: str, takes: QueueFilter | None = None) -> LocalSubscription:
        subscription = super().subscribe(*names, takes=takes)
        self.open.add(subscription)
        return subscription

    def forget(self, subscription: LocalSubscription) -> None:
        super().forget(subscription)
        self.open.discard(subscription)


class Log:
    """A store of which only the log works; the cursor is the number of entries read."""

    def __init__(self, *entries: LogEntry) -> None:
        self.entries = list(entries)
        self.kept_from = 0
        self.fault: Exception | None = None
        self.was_read = asyncio.Event()
        self._notifier = CountingNotifier()

    def __getattr__(self, name: str) -> Any:
        return None

    def describe(self) -> Description:
        return MEMORY

    def notifier(self) -> CountingNotifier:
        return self._notifier

    async def cursor(self, position: Literal["now", "oldest"]) -> bytes:
        return b"%d" % (len(self.entries) if position == "now" else self.kept_from)

    async def events(self, cursor: bytes, wanted: EventFilter, limit: int) -> EventPage:
        self.was_read.set()
        if self.fault is not None:
            raise self.fault
        if not cursor.isdigit():
            raise InvalidInput("cursor: made by another store")
        start = max(int(cursor), self.kept_from)
        page = tuple(
            StoredEvent(b"%d" % number, entry)
            for number, entry in enumerate(self.entries[start : start + limit], start + 1)
        )
        reached = page[-1].cursor if page else b"%d" % start
        return EventPage(page, reached, missed=start != int(cursor))


def completed(outcome: str = "success") -> LogEntry:
    details = {"outcome": outcome} if outcome else {}
    return LogEntry(
        at=5, execution_id=ID, kind="released", families=("completion",), details=details
    )


def events_on(log: Log) -> Events:
    return Events(Deps(Store(cast(Backend, log)), PartitionCounts()))


async def soon(subscription: Subscription) -> Any:
    async with asyncio.timeout(SOON_S):
        return await anext(subscription)


async def test_a_subscription_nobody_iterates_holds_nothing() -> None:
    log = Log()
    subscription = await events_on(log).subscribe({"completion"})
    assert not log.notifier().open
    await subscription.aclose()


@pytest.mark.parametrize("how", ["close", "drop"])
async def test_ending_a_subscription_frees_its_topic(how: str) -> None:
    log = Log()
    subscription = await events_on(log).subscribe({"completion"})
    waiting = asyncio.ensure_future(soon(subscription))
    async with asyncio.timeout(SOON_S):
        while not log.notifier().open:  # noqa: ASYNC110
            await asyncio.sleep(0)
    _loudly(log)
    await waiting
    assert len(log.notifier().open) == 1
    if how == "close":
        await subscription.aclose()
    else:
        del subscription
        gc.collect()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not log.notifier().open


async def test_cancelling_a_waiting_reader_frees_its_topic() -> None:
    log = Log()
    subscription = await events_on(log).subscribe({"completion"})
    waiting = asyncio.ensure_future(anext(subscription))
    await log.was_read.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not log.notifier().open


async def test_what_came_between_subscribing_and_iterating_is_not_lost() -> None:
    log = Log(completed("failed"))
    async with aclosing(await events_on(log).subscribe({"completion"})) as subscription:
        log.entries.append(completed())
        event = await soon(subscription)
    assert isinstance(event, CompletionEvent)
    assert (event.outcome, event.cursor) == ("success", to_text(b"2"))


def _quietly(log: Log) -> None:
    log.entries.append(completed())


def _loudly(log: Log) -> None:
    log.entries.append(completed())
    log.notifier().notify(LOG_TOPIC)


@pytest.mark.parametrize(("write", "net_s"), [(_loudly, 60.0), (_quietly, 0.01)])
async def test_a_reader_wakes_by_a_notification_and_without_it_by_its_safety_net(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[Log], None], net_s: float
) -> None:
    monkeypatch.setattr(module, "SAFETY_NET_S", net_s)
    log = Log()
    async with aclosing(await events_on(log).subscribe({"completion"})) as subscription:
        waiting = asyncio.ensure_future(soon(subscription))
        await log.was_read.wait()
        write(log)
        assert isinstance(await waiting, CompletionEvent)


async def test_a_broken_read_ends_the_stream_with_the_last_position() -> None:
    log = Log(completed(), completed())
    subscription = await events_on(log).subscribe({"completion"}, cursor="oldest")
    await soon(subscription)
    await soon(subscription)
    log.fault = TransportFault("gone")
    with pytest.raises(StreamDisconnected) as broken:
        await soon(subscription)
    assert broken.value.details["cursor"] == to_text(b"2")
    assert isinstance(broken.value.__cause__, TransportFault)
    with pytest.raises(StopAsyncIteration):
        await soon(subscription)
    assert not log.notifier().open


async def test_missed_entries_are_told_and_the_stream_goes_on() -> None:
    log = Log(*[completed()] * 5)
    log.kept_from = 3
    subscription = await events_on(log).subscribe({"completion"}, cursor=to_text(b"1"))
    async with aclosing(subscription):
        first = await soon(subscription)
        rest = [await soon(subscription) for _ in range(2)]
    assert isinstance(first, BackpressureEvent)
    assert [event.cursor for event in rest] == [to_text(b"4"), to_text(b"5")]


async def test_an_unreadable_entry_is_one_item_among_the_others() -> None:
    log = Log(completed(), completed(""), completed())
    subscription = await events_on(log).subscribe({"completion"}, cursor="oldest")
    async with aclosing(subscription):
        items = [await soon(subscription) for _ in range(3)]
    assert [type(item) for item in items] == [CompletionEvent, CorruptionEvent, CompletionEvent]


async def test_a_foreign_cursor_is_refused_before_anybody_iterates() -> None:
    with pytest.raises(InvalidInput):
        await events_on(Log()).subscribe({"completion"}, cursor=to_text(b"other"))
