"""Flushes the write-ahead log to the disk and merges it into the file soon after a commit, in a
thread of its own so that no writer has to do it.

SQLite itself would leave the log to the next checkpoint, which on a quiet file is hours away (until
then a commit outlives its process, but not a power failure), and would make a writer do it.
"""

import logging
import os
import sqlite3
import threading
from typing import Final

_log = logging.getLogger("flowfabric.backend")

# Short, because a writer waits while a long log is flushed.
_WITHIN_S: Final = 0.1
_flush: Final = getattr(os, "fdatasync", os.fsync)


class Upkeep:
    """Maintains one file through a connection of its own."""

    def __init__(self, connection: sqlite3.Connection, path: str) -> None:
        self._connection = connection
        # The writer has opened the file, so its log exists and stays the same file.
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
        """Stop; the last connection that closes does the rest."""
        self._is_over.set()
        self._is_wanted.set()
        self._thread.join()
        self._connection.close()
        os.close(self._descriptor)

    def _run(self) -> None:
        while True:
            self._is_wanted.wait()
            # Before `_is_over` is checked: later it might clear what `stop` has just set.
            self._is_wanted.clear()
            # The commits within this time share one flush.
            if self._is_over.wait(_WITHIN_S):
                return
            self._flush_and_merge()

    def _flush_and_merge(self) -> None:
        try:
            _flush(self._descriptor)
            # Waits for no reader or writer; what they keep it from merging is merged next time.
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        except (sqlite3.Error, OSError):
            if not self._has_failed:
                _log.exception("sqlite: the write-ahead log was not merged; trying again")
            self._has_failed = True
            self._is_wanted.set()
        else:
            self._has_failed = False
