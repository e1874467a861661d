"""Reading the log once for all who follow it in this process.

A follower reads the store itself until it has reached the end of the log. From then on it gets
what one reader finds, and is woken only by entries that it asked for.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import chain, islice
from typing import Final, TypeVar

from flowfabric.backend.base import LOG_TOPIC, Backend, TopicSubscription
from flowfabric.backend.supervision import supervise
from flowfabric.backend.types import EventFilter, StoredEvent
from flowfabric.engine.streams.followers import Follower, Interest, Watch
from flowfabric.errors import FlowFabricError

PAGE: Final = 256
# How often the reader looks without a notification: one may be lost, the log is the truth.
SAFETY_NET_S: Final = 3.0
_REMEMBERED: Final = 1_000
# Followers that are looked at before others get their turn.
_AT_ONCE: Final = 2_000

V = TypeVar("V")

_log = logging.getLogger("flowfabric.streams")


class LogReader:
    """Runs while somebody follows. Use from one event loop."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._interested = _Interested()
        # Where it reads on; empty while that is not known.
        self._position = b""
        self._recent = _Recent()
        self._topic: TopicSubscription | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def position(self) -> bytes:
        return self._position

    @property
    def following(self) -> int:
        """How many followers there are."""
        return len(self._interested)

    def follow(self, position: bytes, interest: Interest) -> Follower:
        return Follower(self, self._backend, position, interest)

    def watch(self, execution_id: str) -> Watch:
        watch = Watch(self, execution_id)
        self._interested.watch(watch)
        self.begin(b"")
        return watch

    def missing(self, position: bytes) -> list[StoredEvent] | None:
        """What came behind a position; None when that is not remembered."""
        if not self._position:
            return None
        return [] if position == self._position else self._recent.behind(position)

    def begin(self, position: bytes) -> None:
        """Read from a position on, or from where the log ends now, unless that goes on already."""
        if self._task is None:
            self._position = position
            self._topic = self._backend.notifier().subscribe(LOG_TOPIC)
            reading = partial(self._run, self._topic)
            # While it is started again, everybody reads for itself.
            supervised = supervise("the reader of the log", reading, self._interested.detach_all)
            self._task = asyncio.get_running_loop().create_task(supervised)

    def enter(self, follower: Follower) -> None:
        self._interested.add(follower)

    def leave(self, one: Follower | Watch) -> None:
        self._interested.remove(one)
        if not self._interested:
            self.close()

    def close(self) -> None:
        if self._task is None or self._topic is None:
            return
        self._topic.close()
        self._task.cancel()
        self._task = None
        self._position = b""
        self._recent = _Recent()

    async def _run(self, topic: TopicSubscription) -> None:
        while True:
            topic.take()
            try:
                is_at_end = not await self._advance()
            except FlowFabricError as fault:
                _log.info("reading the log: %s", fault)
                # Each reads for itself, and so has the error in its own place.
                self._interested.detach_all()
                is_at_end = True
            if is_at_end:
                await topic.wait(SAFETY_NET_S)

    async def _advance(self) -> bool:
        """Hand out one page; whether the position has moved."""
        before = self._position
        if not before:
            self._position = await self._backend.cursor("now")
            self._interested.wake_detached()
            return True
        page = await self._backend.events(before, EventFilter(), PAGE)
        if page.missed:
            # Each has missed something else, which it has to be told.
            self._recent = _Recent()
            self._interested.detach_all()
            self._position = b""
        await self._hand_out(page.events)
        self._position = page.cursor
        if page.cursor != before:
            self._interested.wake_detached()
        return page.cursor != before

    async def _hand_out(self, events: Iterable[StoredEvent]) -> None:
        looked_at = 0
        for stored in events:
            self._recent.append(self._position, stored)
            self._position = stored.cursor
            looked_at += self._interested.hand_out(stored)
            if looked_at > _AT_ONCE:
                looked_at = 0
                await asyncio.sleep(0)


class _Recent:
    """The newest entries, so that a follower that comes back does not have them read again."""

    def __init__(self) -> None:
        self._entries: deque[tuple[bytes, StoredEvent]] = deque()
        # The numbers of entries by the position before them.
        self._numbers: dict[bytes, int] = {}
        self._appended = 0

    def append(self, before: bytes, stored: StoredEvent) -> None:
        if len(self._entries) == _REMEMBERED:
            oldest, _ = self._entries.popleft()
            self._numbers.pop(oldest, None)
        self._entries.append((before, stored))
        self._numbers[before] = self._appended
        self._appended += 1

    def behind(self, position: bytes) -> list[StoredEvent] | None:
        number = self._numbers.get(position)
        if number is None:
            return None
        behind = self._appended - number
        newest = islice(reversed(self._entries), behind)
        return [stored for _, stored in newest][::-1]


class _Interested:
    """Followers by the namespaces they ask for, and watches by execution."""

    def __init__(self) -> None:
        self._of_all: dict[Follower, None] = {}
        self._of_namespace: dict[str, dict[Follower, None]] = {}
        self._watches: dict[str, dict[Watch, None]] = {}
        self._followers: dict[Follower, None] = {}

    def __len__(self) -> int:
        return len(self._followers) + len(self._watches)

    def add(self, follower: Follower) -> None:
        self._followers[follower] = None
        namespaces = follower.interest.namespaces
        if namespaces is None:
            self._of_all[follower] = None
        for one in namespaces or ():
            self._of_namespace.setdefault(one, {})[follower] = None

    def watch(self, watch: Watch) -> None:
        self._watches.setdefault(watch.execution_id, {})[watch] = None

    def remove(self, one: Follower | Watch) -> None:
        if isinstance(one, Watch):
            _remove(self._watches, one.execution_id, one)
            return
        del self._followers[one]
        self._of_all.pop(one, None)
        for name in one.interest.namespaces or ():
            _remove(self._of_namespace, name, one)

    def hand_out(self, stored: StoredEvent) -> int:
        """How many were looked at."""
        entry = stored.entry
        near = self._of_namespace.get(entry.namespace, {})
        for follower in chain(self._of_all, near):
            follower.offer(stored)
        watches = self._watches.get(entry.execution_id, {})
        for watch in watches:
            watch.wake()
        return len(self._of_all) + len(near) + len(watches) + 1

    def detach_all(self) -> None:
        for follower in self._followers:
            follower.detach()

    def wake_detached(self) -> None:
        for follower in self._followers:
            if not follower.is_attached:
                follower.wake()


def _remove(table: dict[str, dict[V, None]], key: str, value: V) -> None:
    own = table.get(key, {})
    own.pop(value, None)
    if not own:
        table.pop(key, None)
