"""Those who follow the log: what each asks for, and where it is."""

import asyncio
from collections import deque
from typing import Final, Protocol

import msgspec

from flowfabric.backend.base import Backend
from flowfabric.backend.types import EventFilter, EventPage, StoredEvent
from flowfabric.core.events import LogEntry
from flowfabric.core.pages import Room, entry_bytes

# A follower that has more waiting reads the store itself again.
MOST_OFFERED: Final = 1_000


class Interest(msgspec.Struct, frozen=True):
    """What a follower asks for. `visible` are the namespaces it may see, None for all."""

    wanted: EventFilter
    visible: frozenset[str] | None = None

    @property
    def namespaces(self) -> frozenset[str] | None:
        """Those whose entries may be of interest; None for all."""
        if not self.wanted.namespace:
            return self.visible
        named = frozenset({self.wanted.namespace})
        return named if self.visible is None else named & self.visible

    @property
    def is_shared(self) -> bool:
        """Partitions lie on several servers: who asks for some of them reads no others."""
        return not self.wanted.partitions

    def lets_through(self, entry: LogEntry) -> bool:
        """Whether a store shows the entry to one who asks for no partitions."""
        wanted = self.wanted
        if wanted.families and wanted.families.isdisjoint(entry.families):
            return False
        if wanted.namespace and entry.namespace != wanted.namespace:
            return False
        return wanted.tag is None or entry.tags.get(wanted.tag[0]) == wanted.tag[1]

    def shows(self, entry: LogEntry) -> bool:
        return self.visible is None or entry.namespace in self.visible


class Reader(Protocol):
    """What reads the log for its followers."""

    @property
    def position(self) -> bytes: ...

    def missing(self, position: bytes, /) -> list[StoredEvent] | None: ...

    def begin(self, position: bytes, /) -> None: ...

    def enter(self, follower: "Follower", /) -> None: ...

    def leave(self, one: "Follower | Watch", /) -> None: ...


class _Sleeper:
    """Remembers being woken between two waits. One coroutine waits at a time."""

    def __init__(self) -> None:
        self._is_woken = False
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        self._is_woken = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float | None) -> None:
        """Until it is woken, or so long."""
        if not self._is_woken:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            timer = None if seconds is None else loop.call_later(seconds, self.wake)
            try:
                await self._waiter
            finally:
                self._waiter = None
                if timer is not None:
                    timer.cancel()
        self._is_woken = False


class Watch(_Sleeper):
    """Wakes for entries about one execution. Close it at the end."""

    def __init__(self, reader: Reader, execution_id: str) -> None:
        super().__init__()
        self.execution_id = execution_id
        self._reader = reader

    def close(self) -> None:
        self._reader.leave(self)


class Follower(_Sleeper):
    """A position in the log, and what lies behind it. Close it at the end."""

    def __init__(
        self, reader: Reader, backend: Backend, position: bytes, interest: Interest
    ) -> None:
        super().__init__()
        # Everything up to here was taken.
        self.position = position
        self.interest = interest
        # Whether the reader hands it what it finds.
        self.is_attached = False
        self._reader = reader
        self._backend = backend
        self._offered: deque[StoredEvent] = deque()
        self._is_known = False

    async def page(self, limit: int, seconds: float | None = None) -> EventPage:
        """The next entries that it asked for, at most `limit`. Without any it waits so long, or
        until there is one."""
        loop = asyncio.get_running_loop()
        end = None if seconds is None else loop.time() + seconds
        while True:
            self._is_woken = False
            before = self.position
            page = self._take(limit) if self._attach() else await self._read(limit)
            self.position = page.cursor
            left = None if end is None else end - loop.time()
            if page.events or page.missed or (left is not None and left <= 0):
                return page
            is_at_end = self.is_attached or page.cursor == before
            if is_at_end and not self._begin():
                await self.wait(left)

    def close(self) -> None:
        if self._is_known:
            self._is_known = self.is_attached = False
            self._reader.leave(self)

    # ---- called by the reader

    def offer(self, stored: StoredEvent) -> None:
        """Take an entry of its namespaces, if it is one that it asked for."""
        if not self.is_attached or not self.interest.lets_through(stored.entry):
            return
        if len(self._offered) == MOST_OFFERED:
            self.detach()
            return
        self._offered.append(stored)
        self.wake()

    def detach(self) -> None:
        """Let it read the store from its own position on."""
        self.is_attached = False
        self._offered.clear()
        self.wake()

    # ---- reading

    def _attach(self) -> bool:
        """Whether the reader has passed its position, so that nothing has to be read for it."""
        if self.is_attached or not self.interest.is_shared:
            return self.is_attached
        missing = self._reader.missing(self.position)
        if missing is None:
            return False
        self._enter()
        self.is_attached = True
        for stored in missing:
            if self.interest.shows(stored.entry):
                self.offer(stored)
        return self.is_attached

    def _begin(self) -> bool:
        """At the end of the log: have it read on from here, if nobody does that yet. Whether there
        may be more to take at once."""
        if self.is_attached:
            return False
        self._enter()
        self._reader.begin(self.position if self.interest.is_shared else b"")
        return self._attach()

    def _enter(self) -> None:
        if not self._is_known:
            self._is_known = True
            self._reader.enter(self)

    def _take(self, limit: int) -> EventPage:
        room, taken = Room(), list[StoredEvent]()
        while self._offered and len(taken) < limit:
            if not room.takes(entry_bytes(self._offered[0].entry)):
                break
            taken.append(self._offered.popleft())
        reached = taken[-1].cursor if self._offered else self._reader.position
        return EventPage(tuple(taken), reached)

    async def _read(self, limit: int) -> EventPage:
        page = await self._backend.events(self.position, self.interest.wanted, limit)
        wanted = tuple(stored for stored in page.events if self.interest.shows(stored.entry))
        return EventPage(wanted, page.cursor, page.missed)
