"""Waiting for executions to end: one reader of the log for everybody who waits in this process."""

import asyncio
import logging
from typing import Final

from flowfabric.core.ids import parse_execution_id
from flowfabric.core.states import FINAL
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.event_types import CompletionEvent
from flowfabric.engine.events import Events, Subscription
from flowfabric.engine.snapshots import stored_public_state
from flowfabric.errors import ExecutionNotFound, FlowFabricError

_log = logging.getLogger("flowfabric.waits")

MOST_WAIT_MS: Final = 30_000
# How often a wait looks although the log told nothing.
SAFETY_NET_S: Final = 5.0


class Waits:
    """Who waits, by execution. The log is read only while somebody does."""

    def __init__(self, deps: Deps, events: Events) -> None:
        self._deps = deps
        self._events = events
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._reader: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def until_final(self, execution_id: str, wait_ms: int) -> str:
        """The public state, as soon as it is a final one or else when the time is up."""
        parse_execution_id(execution_id, self._deps.counts)
        whole(wait_ms, "wait_ms", 0, MOST_WAIT_MS)
        if not wait_ms:
            return (await self._look(execution_id))[0]
        ended = asyncio.Event()
        self._waiting.setdefault(execution_id, set()).add(ended)
        try:
            return await self._wait(execution_id, ended, wait_ms / 1000)
        finally:
            self._leave(execution_id, ended)

    async def listening(self) -> None:
        """Until the log is being read for those who wait: what ends from now on wakes them."""
        await self._start()

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
            self._reader = None

    async def _wait(self, execution_id: str, ended: asyncio.Event, seconds: float) -> str:
        # Looking after the reader has its position closes the gap between the two.
        await self._start()
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while True:
            state, is_final = await self._look(execution_id)
            left = end - loop.time()
            if is_final or left <= 0:
                return state
            try:
                async with asyncio.timeout(min(left, SAFETY_NET_S)):
                    await ended.wait()
            except TimeoutError:
                await self._start()
            ended.clear()

    async def _look(self, execution_id: str) -> tuple[str, bool]:
        seen = await self._deps.store.read(execution_id)
        if seen is None:
            raise ExecutionNotFound(execution_id)
        return stored_public_state(seen.record), seen.record.state in FINAL

    def _leave(self, execution_id: str, ended: asyncio.Event) -> None:
        others = self._waiting[execution_id]
        others.discard(ended)
        if not others:
            del self._waiting[execution_id]
        if not self._waiting and self._reader is not None:
            self._reader.cancel()
            self._reader = None

    async def _start(self) -> None:
        async with self._starting:
            if self._reader is None or self._reader.done():
                log = await self._events.subscribe_completions()
                self._reader = asyncio.create_task(self._follow(log), name="waits")

    async def _follow(self, log: Subscription) -> None:
        try:
            async for item in log:
                if isinstance(item, CompletionEvent):
                    for ended in self._waiting.get(item.execution_id, ()):
                        ended.set()
        except FlowFabricError as fault:
            _log.warning("the log cannot be read, waits look by themselves: %s", fault)
        finally:
            await log.aclose()
