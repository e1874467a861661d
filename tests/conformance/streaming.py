"""Short words for tests of attempt output, and a way to know that a tail really waits."""

import asyncio
from typing import Any, Final

import pytest

from flowfabric.backend.base import Notifier, TopicSubscription
from flowfabric.engine.lease_proof import LeaseProof
from flowfabric.engine.streams.streams import AnyFrame
from flowfabric.operations.attempts import NewFrame
from flowfabric.operations.streams import Frame, FramePage, StreamRange, Tail
from tests.conformance.driver import Driver

SOON_S: Final = 20.0


def frame(payload: bytes = b"x", **fields: Any) -> Frame:
    return Frame(frame_type=fields.pop("frame_type", "stdout"), payload=payload, **fields)


def patch(payload: bytes, **fields: Any) -> NewFrame:
    return NewFrame(frame_type="summary", payload=payload, mode="summary", **fields)


def live(payload: bytes = b"live", **fields: Any) -> NewFrame:
    return NewFrame(frame_type="stdout", payload=payload, mode="best_effort", **fields)


async def read(driver: Driver, execution_id: str, attempt: int = 0, **fields: Any) -> FramePage:
    asked = StreamRange(**fields)
    return await driver.engine.streams.read_stream(execution_id, attempt, asked)


async def tail(driver: Driver, execution_id: str, attempt: int = 0, **fields: Any) -> FramePage:
    return await driver.engine.streams.tail_stream(execution_id, attempt, Tail(**fields))


def payloads(page: FramePage) -> list[bytes]:
    return [stored.frame.payload for stored in page.frames]


async def append(
    driver: Driver, held: LeaseProof, *frames: AnyFrame, attempt: int = 0
) -> list[str]:
    return list((await driver.engine.streams.append(held, attempt, frames)).ids)


class Waits:
    """Counts who waits for a notification, and how often anybody began to."""

    def __init__(self, notifier: Notifier, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.total = 0
        self._began = asyncio.Event()
        subscribe = notifier.subscribe
        monkeypatch.setattr(notifier, "subscribe", lambda *names: _Watched(subscribe(*names), self))

    async def reach(self, n: int) -> None:
        """Until so many wait at once."""
        async with asyncio.timeout(SOON_S):
            while self.now < n:
                self._began.clear()
                await self._began.wait()

    def begin(self) -> None:
        self.now += 1
        self.total += 1
        self._began.set()

    def end(self) -> None:
        self.now -= 1


class _Watched:
    def __init__(self, subscription: TopicSubscription, waits: Waits) -> None:
        self._subscription = subscription
        self._waits = waits

    async def wait_subscribed(self, timeout: float) -> None:
        await self._subscription.wait_subscribed(timeout)

    async def wait(self, timeout: float | None) -> bool:
        self._waits.begin()
        try:
            return await self._subscription.wait(timeout)
        finally:
            self._waits.end()

    def take(self) -> bool:
        return self._subscription.take()

    def close(self) -> None:
        self._subscription.close()
