"""A question to servers that is asked once for all who want to know."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

_log = logging.getLogger("flowfabric.backend.valkey")


class Inquiry:
    def __init__(self, ask: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._ask = ask
        self._asking: asyncio.Task[None] | None = None

    async def answered(self) -> None:
        """Ask, or wait with those who have; that it failed is raised."""
        self.begin()
        if self._asking is not None:
            await asyncio.shield(self._asking)

    def begin(self) -> None:
        """Ask, and wait for nobody."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())
            self._asking.add_done_callback(self._ended)

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if not task.cancelled() and (fault := task.exception()) is not None:
            # Those who wait are told; without any, the next surprise asks again.
            _log.info("where servers are is not known anew: %s", fault)
