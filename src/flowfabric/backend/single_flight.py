"""Single-flight: concurrent callers share one call."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
V = TypeVar("V")

_log = logging.getLogger("flowfabric.backend")


class SingleFlight(Generic[P, V]):
    """Callers with the same arguments, which are hashable, wait for the same call."""

    def __init__(self, name: str, call: Callable[P, Coroutine[Any, Any, V]]) -> None:
        self._name = name
        self._call = call
        self._running: dict[tuple[Any, ...], asyncio.Task[V]] = {}

    def start(self, *args: P.args, **kwargs: P.kwargs) -> asyncio.Task[V]:
        """The call that is in flight, or a new one."""
        task = self._running.get(args)
        if task is None or task.done():
            task = self._running[args] = asyncio.ensure_future(self._call(*args, **kwargs))
            task.add_done_callback(partial(self._ended, args))
        return task

    async def get(self, *args: P.args, **kwargs: P.kwargs) -> V:
        """The answer of the call; a caller that is cancelled cancels nobody else's."""
        return await asyncio.shield(self.start(*args, **kwargs))

    async def close(self) -> None:
        tasks = tuple(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, args: tuple[Any, ...], task: asyncio.Task[V]) -> None:
        if self._running.get(args) is task:
            del self._running[args]
        # Whoever waits has the error, but there may be nobody.
        if not task.cancelled() and (fault := task.exception()) is not None:
            _log.info("%s failed: %s", self._name, fault)
