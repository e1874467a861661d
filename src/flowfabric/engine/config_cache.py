"""What is read from configuration documents, cached until the configuration changes."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Final, Generic, NamedTuple, TypeVar

from flowfabric.backend.base import CONFIG_TOPIC, Backend
from flowfabric.backend.single_flight import SingleFlight
from flowfabric.errors import TransportError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_FRESH_S: Final = 1.0
# How long to wait for a store that does not answer, and how old a cached value may be that is used
# instead.
_SOON_S: Final = 1.0
_STALE_S: Final = 60.0
_MOST: Final = 10_000


class Entry(NamedTuple, Generic[V]):
    value: V
    read_at: float


class ConfigCache(Generic[K, V]):
    """A value by its key. All are read again after every change of the configuration, and when it
    was not certain for a second that no change was missed."""

    def __init__(
        self, backend: Backend, name: str, read: Callable[[K], Coroutine[Any, Any, V]]
    ) -> None:
        self._notifier = backend.notifier()
        self._subscription = self._notifier.subscribe(CONFIG_TOPIC)
        # As last read, however long ago.
        self.entries: dict[K, Entry[V]] = {}
        self._changed_at = 0.0
        self._read = read
        self._reading = SingleFlight(name, self._store)
        # Since when the store was asked without an answer.
        self._unread_since: dict[K, float] = {}

    def known(self, key: K) -> V | None:
        """The value as cached, None when it must be read; keys that nobody has checked are not
        cached."""
        if self._subscription.is_notified:
            self._subscription.take()
            self._changed_at = time.monotonic()
        try:
            found = self.entries.get(key)
        except TypeError:
            return None
        if found is None or found.read_at <= self._changed_at:
            return None
        last_certain_at = max(found.read_at, self._notifier.last_message_at)
        return found.value if time.monotonic() - last_certain_at <= _FRESH_S else None

    async def fresh(self, key: K) -> V:
        """The value as cached, or as stored."""
        known = self.known(key)
        return await self.soon(key) if known is None else known

    async def read(self, key: K) -> V:
        """The value as stored."""
        return await self._reading.get(key)

    async def soon(self, key: K) -> V:
        """The value as stored, or, while the store does not answer, as last read."""
        stale = self.entries.get(key)
        if stale is None or time.monotonic() - stale.read_at > _STALE_S:
            return await self._reading.get(key)
        reading = self._reading.start(key)
        since = self._unread_since.setdefault(key, time.monotonic())
        left = since + _SOON_S - time.monotonic()
        await asyncio.wait((reading,), timeout=max(0.0, left))
        if not reading.done() or isinstance(reading.exception(), TransportError):
            return stale.value
        return reading.result()

    def change(self, key: K, value: V) -> None:
        """Replace a cached value that the caller knows more of."""
        found = self.entries.get(key)
        if found is not None:
            self.entries[key] = Entry(value, found.read_at)

    def drop(self, key: K) -> None:
        self.entries.pop(key, None)

    async def close(self) -> None:
        self._subscription.close()
        await self._reading.close()

    async def _store(self, key: K) -> V:
        # What changes while it is read may not be seen.
        read_at = time.monotonic()
        value = await self._read(key)
        if len(self.entries) >= _MOST:
            self.entries.clear()
        self.entries[key] = Entry(value, read_at)
        self._unread_since.pop(key, None)
        return value
