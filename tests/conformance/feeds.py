"""Short words for tests of subscriptions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

from flowfabric.core.plan import Family
from flowfabric.engine.streams.events import Subscription
from flowfabric.operations.events import (
    FAMILIES,
    BackpressureEvent,
    CorruptionEvent,
    Cursor,
    Event,
    EventScope,
)
from tests.conformance.driver import Driver

SOON_S: Final = 20.0
EVERYTHING: Final = frozenset[Family](FAMILIES)


async def take(subscription: Subscription, n: int) -> list[Event]:
    """The next events, which must be there or come soon."""
    events: list[Event] = []
    async with asyncio.timeout(SOON_S):
        while len(events) < n:
            item = await anext(subscription)
            assert not isinstance(item, BackpressureEvent | CorruptionEvent)
            events.append(item)
    return events


@asynccontextmanager
async def following(
    driver: Driver, *families: Family, cursor: Cursor = "", **scope: Any
) -> AsyncIterator[Subscription]:
    wanted = families or tuple(EVERYTHING)
    subscription = await driver.engine.events.subscribe(wanted, EventScope(**scope), cursor)
    async with aclosing(subscription):
        yield subscription


async def run_one(driver: Driver, **fields: Any) -> str:
    """One execution from submission to success: a lease begun and a lease ended."""
    execution_id = await driver.submit(**fields)
    claimed = await driver.take(execution_id)
    await driver.engine.outcomes.complete(claimed.proof)
    return execution_id
