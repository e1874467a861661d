"""A moment after a commit the write-ahead log is on the disk and merged into the file, by a thread
of its own so that no writer has to do it.

SQLite itself would leave the log to the next checkpoint, which on a quiet file is hours away (until
then a commit outlives its process, but not a power failure), and would make a writer do it.
"""

import logging
import os
import sqlite3
import threading
from typing import Final

_log = logging.getLogger("flowfabric.backend")

# Short, because whoever writes to the log while much of it goes to the disk waits for that.
_WITHIN_S: Final = 0.1
_flush: Final = getattr(os, "fdatasync", os.fsync)


class Upkeep:
    """Looks after one file through a connection of its own."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        # Somebody has the file open by now, so its log is there and stays the same file.
        self._descriptor = os.open(f"{path}-wal", os.O_RDONLY)
        self._is_wanted = threading.Event()
        self._is_over = threading.Event()
        self._has_failed = False
        self._thread = threading.Thread(
            target=self._run, name="flowfabric-sqlite-upkeep", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def note_commit(self) -> None:
        if not self._is_wanted.is_set():
            self._is_wanted.set()

    def stop(self) -> None:
        """Leave what is left to do to the last connection that closes."""
        self._is_over.set()
        self._is_wanted.set()
        self._thread.join()
        self._connection.close()
        os.close(self._descriptor)

    def _run(self) -> None:
        while True:
            self._is_wanted.wait()
            # Before the look at the end, or it would take away what `stop` has just set.
            self._is_wanted.clear()
            # The commits of this while share one look.
            if self._is_over.wait(_WITHIN_S):
                return
            self._tend()

    def _tend(self) -> None:
        try:
            _flush(self._descriptor)
            # Never waits for readers or writers; what they hold up is merged the next time.
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except (sqlite3.Error, OSError):
            if not self._has_failed:
                _log.exception("sqlite: cannot look after the file; will go on trying")
            self._has_failed = True
            self._is_wanted.set()
        else:
            self._has_failed = False
