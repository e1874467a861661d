"""Noticing what other processes write."""

import sqlite3
import time
from typing import Final

_SHORTEST: Final = 0.005
_LONGEST: Final = 0.1
_GROWTH: Final = 1.5


class Watch:
    """Looks at `PRAGMA data_version` of the writing connection, which moves with the commits of
    every other connection and never with its own: whatever moves it came from another process.
    Looks often after a change and ever more rarely without one."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._version = self._read()
        self._next = 0.0
        self.pause = _SHORTEST

    def has_changed(self) -> bool:
        """Whether somebody else wrote since the last look. Does not look when it is too early."""
        now = time.monotonic()
        if now < self._next:
            return False
        version = self._read()
        changed = version != self._version
        self._version = version
        self.pause = _SHORTEST if changed else min(self.pause * _GROWTH, _LONGEST)
        self._next = now + self.pause
        return changed

    def _read(self) -> int:
        return int(self._connection.execute("PRAGMA data_version").fetchone()[0])
