"""The one thread of this process that writes to the file."""

import asyncio
import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import Any, Final

from flowfabric.backend.reference.work import AnyWork
from flowfabric.backend.sql.batches import Committer
from flowfabric.backend.sql.thread_queue import Call, ThreadQueue, deliver, post
from flowfabric.backend.sqlite import presence
from flowfabric.backend.sqlite.upkeep import Upkeep
from flowfabric.errors import Bug

MOST_ITEMS: Final = 200

_log = logging.getLogger("flowfabric.backend")
# How often the writer checks for commits of other processes, in seconds.
_SHORTEST: Final = 0.005
_LONGEST: Final = 0.1
_GROWTH: Final = 1.5


class CommitListeners:
    """Callbacks for commits; they run in the event loop that used the store last."""

    def __init__(
        self, on_commit: Callable[[set[str]], None], on_foreign_change: Callable[[], None]
    ) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.on_commit = on_commit
        self.on_foreign_change = on_foreign_change


class Writer:
    """Commits all waiting calls as one group. A call that comes alone is committed at once; while
    a group is written, the calls of the next one queue up."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        committer: Committer,
        token: str,
        listeners: CommitListeners,
        upkeep: Upkeep,
    ) -> None:
        self._connection = connection
        self._committer = committer
        self._token = token
        self._listeners = listeners
        self._upkeep = upkeep
        self._watch = Watch(connection)
        self._cannot_check = False
        self._last: Call[None] | None = None

    def start(self, queue: ThreadQueue[AnyWork]) -> threading.Thread:
        # A daemon, because an application that forgets to close must still be able to end.
        thread = threading.Thread(
            target=self._run, args=(queue,), name="flowfabric-sqlite-writer", daemon=True
        )
        thread.start()
        return thread

    def _run(self, queue: ThreadQueue[AnyWork]) -> None:
        while self._last is None:
            group = self._gather(queue)
            if group:
                self._serve(group)
            self._check_other_processes()
        self._close()
        deliver([self._last])

    def _gather(self, queue: ThreadQueue[AnyWork]) -> list[Call[AnyWork]]:
        """Everything that waits, up to a limit; waits until other processes are to be checked."""
        group: list[Call[Any]] = []
        size = 0
        try:
            call = queue.get(self._watch.pause)
            while call.task is not None:
                group.append(call)
                size += len(call.task.items)
                if size >= MOST_ITEMS:
                    return group
                call = queue.get_nowait()
            self._last = call
        except Empty:
            pass
        return group

    def _serve(self, group: list[Call[AnyWork]]) -> None:
        topics: set[str] = set()
        try:
            topics = self._committer.run(group)
        except Exception as fault:
            _log.exception("sqlite: a group of %d calls failed", len(group))
            for call in group:
                call.error = Bug(f"sqlite: {type(fault).__name__}")
        self._upkeep.note_commit()
        deliver(group, partial(self._listeners.on_commit, topics) if topics else None)

    def _check_other_processes(self) -> None:
        try:
            changed = self._watch.has_changed()
        except sqlite3.Error:
            if not self._cannot_check:
                _log.exception("sqlite: commits of other processes were not checked; trying again")
            self._cannot_check = True
            return
        self._cannot_check = False
        if changed and self._listeners.loop is not None:
            post(self._listeners.loop, self._listeners.on_foreign_change)

    def _close(self) -> None:
        self._upkeep.stop()
        try:
            if self._committer.broken is None:
                presence.leave(self._connection, self._token)
            self._connection.close()
        except sqlite3.Error:
            # The next process that opens the file finds that this one has ended, and checks it.
            _log.warning("sqlite: could not close cleanly", exc_info=True)


class Watch:
    """Detects commits of other processes by `PRAGMA data_version` of the writing connection, which
    changes only with commits of other connections. Checks often after a change, and less and less
    often without one."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._version = self._read()
        self._next = 0.0
        self.pause = _SHORTEST

    def has_changed(self) -> bool:
        """Whether another process has written since the last check; False when it is too early to
        check."""
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
