"""A pool of permits for calls of which only so many may be under way at once.

Callers that share a pool name themselves. Each of them may have as many as are still free: one
alone gets half of the pool, two get a third each, and so there is always a permit for the next one.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from flowfabric.errors import ResourceExhausted, Unavailable

_SHORTEST_RETRY_MS: Final = 25
_LONGEST_RETRY_MS: Final = 5_000


def _ignore(_: str) -> None:
    """Counts no refusals."""


class Permits:
    """Taken with `with`, without waiting: when none is free, the refusal says when to try again.

    Use from one event loop. The caller without a name has no share: it may have all.
    """

    def __init__(self, pool: str, size: int) -> None:
        self._pool = pool
        self._size = size
        self._taken = 0
        self._taken_by: Counter[str] = Counter()
        self._closed = False
        self._all_back = asyncio.Event()
        # Called with the name of the pool when a call is refused.
        self.on_refusal: Callable[[str], None] = _ignore

    @property
    def taken(self) -> int:
        return self._taken

    @property
    def available(self) -> int:
        return self._size - self._taken

    @property
    def is_closed(self) -> bool:
        return self._closed

    def enter(self, caller: str = "") -> None:
        if self._closed:
            raise Unavailable(f"{self._pool}: shutting down")
        if not self.available:
            raise self._refusal(f"server max: {self._size}")
        if caller and self._taken_by[caller] >= self.available:
            raise self._refusal(f"{self._taken_by[caller]} of them yours, server max: {self._size}")
        self._taken += 1
        self._taken_by[caller] += 1

    def leave(self, caller: str = "") -> None:
        self._taken -= 1
        self._taken_by[caller] -= 1
        if not self._taken_by[caller]:
            del self._taken_by[caller]
        self._notify_if_drained()

    @contextmanager
    def of(self, caller: str) -> Iterator[None]:
        """A permit of the caller's share."""
        self.enter(caller)
        try:
            yield
        finally:
            self.leave(caller)

    def __enter__(self) -> None:
        self.enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()

    def _refusal(self, reason: str) -> ResourceExhausted:
        self.on_refusal(self._pool)
        wait_ms = _SHORTEST_RETRY_MS * self._size // (self.available + 1)
        return ResourceExhausted(
            f"too many concurrent {self._pool} calls ({reason}); retry with backoff",
            pool=self._pool,
            max=self._size,
            retry_after_ms=min(max(_SHORTEST_RETRY_MS, wait_ms), _LONGEST_RETRY_MS),
        )

    def close(self) -> None:
        """Give out no more."""
        self._closed = True
        self._notify_if_drained()

    async def returned(self, timeout_s: float) -> bool:
        """Once closed: wait until all are back; False when that takes too long."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._all_back.wait()
        except TimeoutError:
            return False
        return True

    def _notify_if_drained(self) -> None:
        if self._closed and not self._taken:
            self._all_back.set()
