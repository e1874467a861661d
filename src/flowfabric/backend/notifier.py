"""Notifications inside one process."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from itertools import repeat
from typing import Final

# Topics whose notifications are counted; with more, counting begins anew.
_MOST_COUNTED: Final = 10_000


class LocalNotifier:
    """A notification reaches every subscriber of its topic. The topic of a lane is different: there
    it wakes only the claim that has waited longest, because one piece of work needs one worker. Use
    from one event loop."""

    def __init__(self) -> None:
        self._subscribers: dict[str, OrderedDict[LocalSubscription, None]] = {}
        self._counts: dict[str, int] = {}
        self._missed = 0
        # Set by notifiers whose messages share one connection.
        self.last_message_at = 0.0

    def subscribe(self, *topics: str) -> "LocalSubscription":
        subscription = LocalSubscription(self, topics)
        for topic in topics:
            self._subscribers.setdefault(topic, OrderedDict())[subscription] = None
        return subscription

    def notify(self, *topics: str) -> None:
        for topic in topics:
            self._notify(topic, LocalSubscription.wake)

    def confirm(self, topic: str) -> None:
        """Notifications of other processes arrive from now on. What came before may have been
        missed, so this counts as a notification for subscribers that have read already."""
        self._notify(topic, LocalSubscription.confirm)

    def _notify(self, topic: str, wake: Callable[["LocalSubscription"], None]) -> None:
        if topic in self._counts:
            self._counts[topic] += 1
        subscribers = self._subscribers.get(topic)
        if not subscribers:
            return
        if not topic.startswith("lane:"):
            for subscription in list(subscribers):
                wake(subscription)
            return
        for longest_waiting in subscribers:
            if not longest_waiting.is_notified:
                longest_waiting.wake()
                return

    def notify_all(self) -> None:
        """Wake every subscriber: notifications may have been lost."""
        self._missed += 1
        for subscribers in list(self._subscribers.values()):
            for subscription in list(subscribers):
                subscription.wake()

    def mark(self, *topics: str) -> tuple[int, ...]:
        if len(self._counts) > _MOST_COUNTED:
            self._counts.clear()
            self._missed += 1
        return (self._missed, *map(self._counts.setdefault, topics, repeat(0)))

    @property
    def is_disconnected(self) -> bool:
        """Every notification comes from this process."""
        return False

    def has_subscriber(self, topic: str) -> bool:
        return topic in self._subscribers

    def forget(self, subscription: "LocalSubscription") -> None:
        for topic in subscription.topics:
            subscribers = self._subscribers.get(topic)
            if subscribers is not None:
                subscribers.pop(subscription, None)
                if not subscribers:
                    del self._subscribers[topic]


class LocalSubscription:
    """One coroutine waits at a time."""

    def __init__(self, notifier: LocalNotifier, topics: tuple[str, ...]) -> None:
        self.topics = topics
        self.is_notified = False
        self._notifier = notifier
        self._waiter: asyncio.Future[None] | None = None
        # Whether it was notified by nothing but the confirmation.
        self._is_confirmed_only = False
        # Whether a confirmation counts as a notification.
        self._has_read = True
        self.is_closed = False
        # Done as soon as notifications of other processes arrive; None if they do already.
        self.confirmed: asyncio.Future[None] | None = None

    @property
    def last_message_at(self) -> float:
        return self._notifier.last_message_at

    def wake(self) -> None:
        self._is_confirmed_only = False
        self._wake()

    def confirm(self) -> None:
        if self._has_read:
            self._is_confirmed_only |= not self.is_notified
            self._wake()

    def _wake(self) -> None:
        self.is_notified = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait_subscribed(self, timeout: float) -> None:
        """Until the subscription is confirmed, or the time is up. The confirmation then counts as
        no notification."""
        if self.confirmed is not None and not self.confirmed.done():
            self.is_notified = await self.wait(timeout)
        self._forget_confirmation()

    def _forget_confirmation(self) -> None:
        if self._is_confirmed_only:
            self.is_notified = False

    async def wait_before_read(self, timeout: float) -> bool:
        """Wait as a caller that has not read yet: a confirmation is no notification to it."""
        self._forget_confirmation()
        self._has_read = False
        try:
            return await self.wait(timeout)
        finally:
            self._has_read = True

    async def wait(self, timeout: float | None) -> bool:
        """Wait for a notification since the last wait; False when the time or the subscription
        ended first."""
        if not self.is_notified and not self.is_closed:
            loop = asyncio.get_running_loop()
            waiter = self._waiter = loop.create_future()
            timer = None if timeout is None else loop.call_later(timeout, _end, waiter)
            try:
                await waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        return self.take()

    def take(self) -> bool:
        """Whether it was notified since the last wait or take, without waiting."""
        is_notified, self.is_notified = self.is_notified, False
        return is_notified

    def close(self) -> None:
        """End the subscription and its wait. A notification of a lane that nobody took goes to
        another subscriber, so that it is not lost."""
        if self.is_closed:
            return
        self.is_closed = True
        self._notifier.forget(self)
        if self.is_notified:
            self._notifier.notify(*(topic for topic in self.topics if topic.startswith("lane:")))
        elif self._waiter is not None:
            _end(self._waiter)


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
