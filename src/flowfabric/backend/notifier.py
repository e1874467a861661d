"""Notifications inside one process."""

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from itertools import count
from typing import Final, NamedTuple

from flowfabric.backend.base import QUEUE
from flowfabric.core.queues import QueueFilter

# Marks whose notifications are counted; with more, counting begins anew.
_MOST_COUNTED: Final = 10_000


class _Notice(NamedTuple):
    """What was notified. Of a lane, what has work: one queue by its name, something that a claim
    with this filter takes, or, with None, whatever it may be."""

    topic: str
    work: "str | QueueFilter | None" = None

    def concerns(self, takes: QueueFilter | None) -> bool:
        """Whether who takes this finds the work."""
        if takes is None or self.work is None:
            return True
        return takes.takes(self.work) if isinstance(self.work, str) else takes.overlaps(self.work)

    def may_concern(self, takes: QueueFilter | None) -> bool:
        """Whether only a look can tell."""
        return takes is not None and isinstance(self.work, str) and takes.may_take(self.work)


class LocalNotifier:
    """A notification reaches every subscriber of its topic. The topic of a lane is different: there
    it names a queue, and wakes only the claim that has waited longest of those that take this
    queue, because one piece of work needs one worker. One that names no queue wakes all of them.
    Use from one event loop."""

    def __init__(self) -> None:
        # By topic and by what they take, in the order in which they came.
        self._subscribers: dict[str, _Groups] = {}
        self._arrivals = count()
        self._counts: dict[str, dict[QueueFilter | None, int]] = {}
        self._counted = 0
        self._missed = 0
        self.last_message_at = 0.0

    def subscribe(self, *topics: str, takes: QueueFilter | None = None) -> "LocalSubscription":
        subscription = LocalSubscription(self, topics, takes, next(self._arrivals))
        for topic in topics:
            groups = self._subscribers.setdefault(topic, {})
            groups.setdefault(takes, OrderedDict())[subscription] = None
        return subscription

    def notify(self, *topics: str) -> None:
        for one in topics:
            topic, _, queue = one.partition(QUEUE)
            if topic in self._subscribers or topic in self._counts:
                self.publish(_Notice(topic, queue or None))

    def notify_next(self, takes: QueueFilter, *topics: str) -> None:
        for topic in topics:
            self.publish(_Notice(topic, takes))

    def confirm(self, topic: str) -> None:
        """Notifications of other processes arrive from now on. What came before may have been
        missed, so this counts as a notification for subscribers that have read already."""
        notice = _Notice(topic)
        self._count(notice)
        for subscription in self._all(topic):
            subscription.confirm(notice)

    def publish(self, notice: _Notice) -> None:
        self._count(notice)
        if notice.work is None:
            for subscription in self._all(notice.topic):
                subscription.wake(notice)
            return
        groups = self._subscribers.get(notice.topic, {})
        concerned = [group for takes, group in groups.items() if notice.concerns(takes)]
        longest = [*filter(None, map(_longest_waiting, concerned))]
        if concerned and isinstance(notice.work, str):
            longest = sorted(longest, key=lambda one: one.arrival)[:1]
        elif not concerned:
            # Those of one group may differ in what they do not know.
            unsure = (group for takes, group in groups.items() if notice.may_concern(takes))
            longest = [waiting for group in unsure for waiting in group]
        for waiting in longest:
            waiting.wake(notice)

    def _all(self, topic: str) -> "list[LocalSubscription]":
        groups = self._subscribers.get(topic, {})
        return [subscription for group in groups.values() for subscription in group]

    def _count(self, notice: _Notice) -> None:
        counts = self._counts.get(notice.topic)
        for takes in counts or ():
            if counts and notice.concerns(takes):
                counts[takes] += 1

    def notify_all(self) -> None:
        """Wake every subscriber: notifications may have been lost."""
        self._missed += 1
        for topic in list(self._subscribers):
            for subscription in self._all(topic):
                subscription.wake(_Notice(topic))

    def mark(self, *topics: str, takes: QueueFilter | None = None) -> tuple[int, ...] | None:
        return (self._missed, *[self._counted_for(topic, takes) for topic in topics])

    def _counted_for(self, topic: str, takes: QueueFilter | None) -> int:
        counts = self._counts.get(topic)
        if counts is not None and takes in counts:
            return counts[takes]
        if self._counted >= _MOST_COUNTED:
            self._counts.clear()
            self._counted = 0
            self._missed += 1
        self._counted += 1
        return self._counts.setdefault(topic, {}).setdefault(takes, 0)

    @property
    def is_disconnected(self) -> bool:
        """Every notification comes from this process."""
        return False

    def has_subscriber(self, topic: str) -> bool:
        return topic in self._subscribers

    def forget(self, subscription: "LocalSubscription") -> None:
        for topic in subscription.topics:
            groups = self._subscribers.get(topic, {})
            group = groups.get(subscription.takes)
            if group is None:
                continue
            group.pop(subscription, None)
            if not group:
                del groups[subscription.takes]
            if not groups:
                del self._subscribers[topic]


class LocalSubscription:
    """One coroutine waits at a time."""

    def __init__(
        self,
        notifier: LocalNotifier,
        topics: tuple[str, ...],
        takes: QueueFilter | None,
        arrival: int,
    ) -> None:
        self.topics = topics
        self.takes = takes
        self.arrival = arrival
        self.is_notified = False
        # What woke it, for who may take its place.
        self._notices: list[_Notice] = []
        self._notifier = notifier
        self._waiter: asyncio.Future[None] | None = None
        # Whether it was notified by nothing but the confirmation.
        self._is_confirmed_only = False
        # Whether a confirmation counts as a notification.
        self._has_read = True
        self.is_closed = False
        # Done as soon as notifications of other processes arrive; None if they do already.
        self.confirmed: asyncio.Future[None] | None = None

    def wake(self, notice: _Notice) -> None:
        self._is_confirmed_only = False
        self._wake(notice)

    def confirm(self, notice: _Notice) -> None:
        if self._has_read:
            self._is_confirmed_only |= not self.is_notified
            self._wake(notice)

    def _wake(self, notice: _Notice) -> None:
        self.is_notified = True
        if notice.work is not None:
            self._notices.append(notice)
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
        self._notices.clear()
        return is_notified

    def close(self) -> None:
        """End the subscription and its wait. A notification of a lane that nobody took goes to
        another subscriber, so that it is not lost, unless all were woken."""
        if self.is_closed:
            return
        self.is_closed = True
        self._notifier.forget(self)
        if self.is_notified:
            for notice in self._notices:
                self._notifier.publish(notice)
        elif self._waiter is not None:
            _end(self._waiter)


_Groups = dict[QueueFilter | None, OrderedDict[LocalSubscription, None]]


def _longest_waiting(group: Iterable[LocalSubscription]) -> LocalSubscription | None:
    return next((one for one in group if not one.is_notified), None)


def _end(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
