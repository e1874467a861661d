"""The write-ahead log reaches the disk a second after a commit at the latest.

SQLite itself would wait for the next checkpoint, which on a quiet file is hours away. Until then a
commit outlives its process, but not a power failure.
"""

import os
import time
from math import inf
from typing import Final

# Looks for it happen every tenth of a second.
_WITHIN: Final = 0.9
_flush: Final = getattr(os, "fdatasync", os.fsync)


class Sync:
    def __init__(self, path: str) -> None:
        self._log = f"{path}-wal"
        self._due = inf

    def note_commit(self) -> None:
        if self._due == inf:
            self._due = time.monotonic() + _WITHIN

    def run_if_due(self) -> bool:
        """Whether there was something to do. Closing the log, unlike the database, gives up no
        lock of this process: SQLite holds none there."""
        if time.monotonic() < self._due:
            return False
        self._due = inf
        descriptor = os.open(self._log, os.O_RDONLY)
        try:
            _flush(descriptor)
        finally:
            os.close(descriptor)
        return True
