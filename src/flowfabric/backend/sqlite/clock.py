"""The store's clock: the process clock, which may be set back; the store's never is."""

import threading
import time
from collections.abc import Callable


def wall_clock() -> int:
    return time.time_ns() // 1_000_000


class Clock:
    """Instants in ms that never go back within this process, whatever thread asks."""

    def __init__(self, source: Callable[[], int] | None = None) -> None:
        self._source = source or wall_clock
        self._last = 0
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            self._last = max(self._last, self._source())
            return self._last
