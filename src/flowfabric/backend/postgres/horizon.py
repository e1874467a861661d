"""Up to where the log can be read without missing an entry."""

import threading


class Horizon:
    """Up to which number the log is complete: entries get their numbers in one order and are
    committed in another. A number is final once every transaction is over that ran when it, or a
    later one, had been given. Shared by the threads of a process."""

    def __init__(self) -> None:
        self.final = 0
        self._lock = threading.Lock()
        # A number, and the first transaction that began after it had been given.
        self._sample: tuple[int, int] | None = None

    def advance(self, number: int, oldest: int, next_one: int) -> int:
        """`number` was given before the snapshot was taken in which `oldest` is the first
        transaction that still runs and `next_one` the first that has not begun. Returns what this
        snapshot proves: `final` may be further already, by snapshots that other threads took
        later and whose entries a reader of this one does not see."""
        proven = 0
        with self._lock:
            if self._sample is not None and oldest >= self._sample[1]:
                proven = self._sample[0]
                self._sample = None
            if oldest >= next_one:
                proven = max(proven, number)
            elif self._sample is None:
                self._sample = (number, next_one)
            self.final = max(self.final, proven)
        return proven
