"""A pool of permits for calls of which only so many may be under way at once."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final

from flowfabric.errors import ResourceExhausted, Unavailable

_SHORTEST_RETRY_MS: Final = 25


def _ignore(_: str) -> None:
    """Counts no refusals."""


class Permits:
    """Taken with `with`, without waiting: when none is free, the refusal says when to try again.

    Use from one event loop.
    """

    def __init__(self, pool: str, size: int) -> None:
        self._pool = pool
        self._size = size
        self._taken = 0
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

    def __enter__(self) -> None:
        if self._closed:
            raise Unavailable(f"{self._pool}: shutting down")
        if not self.available:
            self.on_refusal(self._pool)
            raise ResourceExhausted(
                f"too many concurrent {self._pool} calls (server max: {self._size});"
                " retry with backoff",
                pool=self._pool,
                max=self._size,
                retry_after_ms=max(
                    _SHORTEST_RETRY_MS, _SHORTEST_RETRY_MS * self._size // (self.available + 1)
                ),
            )
        self._taken += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._taken -= 1
        self._notify_if_drained()

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
