"""An end to requests that take too long.

Thousands begin and end within a second, so none has a timer of its own: those under way are looked
at from time to time, and one that is late is ended a little later than its time.
"""

import asyncio
from typing import Final

LOOK_S: Final = 0.5


class Deadlines:
    """Use from one event loop. Whoever begins must end, in the same task."""

    def __init__(self) -> None:
        self._ends: dict[asyncio.Task[object], float] = {}
        self._late: set[asyncio.Task[object]] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: asyncio.Task[object], seconds: float) -> None:
        loop = task.get_loop()
        self._ends[task] = loop.time() + seconds
        if self._timer is None:
            self._timer = loop.call_later(LOOK_S, self._look, loop)

    def end(self, task: asyncio.Task[object]) -> bool:
        """Whether it was cancelled for being late and nothing else; that is forgiven now."""
        self._ends.pop(task, None)
        if task not in self._late:
            return False
        self._late.discard(task)
        return task.uncancel() == 0

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for task in [task for task, end in self._ends.items() if end <= now]:
            del self._ends[task]
            self._late.add(task)
            task.cancel()
        self._timer = loop.call_later(LOOK_S, self._look, loop) if self._ends else None
