"""Waiting for executions to end: any number of waiters, one reader of the log."""

import asyncio
import logging
from typing import Final

from flowfabric.core.ids import partition_of
from flowfabric.engine import Engine
from flowfabric.engine.event_types import CompletionEvent
from flowfabric.engine.events import EventScope, Subscription
from flowfabric.errors import FlowFabricError
from flowfabric.ports.ends import WITH_RESULT, end_of
from flowfabric.ports.worker import Ended

_log = logging.getLogger("flowfabric.completions")
_PAUSE_S: Final = 0.2
_LINGER_S: Final = 5.0
# Up to so many partitions are followed by themselves; beyond that all of them.
_NARROW: Final = 16


class Completions:
    """The log is read only while somebody waits. Whoever waits looks once after the reading has
    begun, so that no end falls between the two."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: dict[str, set[asyncio.Future[None]]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._is_open = asyncio.Event()
        self._wanted_at = 0.0
        self._partitions: set[int] = set()
        self._turn = asyncio.Event()
        self._events: Subscription | None = None
        self._telling: asyncio.Task[None] | None = None

    async def wait(self, execution_id: str, timeout_s: float | None) -> Ended | None:
        if timeout_s == 0:
            return await self._look(execution_id)
        try:
            async with asyncio.timeout(timeout_s):
                return await self._until(execution_id)
        except TimeoutError:
            return None

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _until(self, execution_id: str) -> Ended:
        while True:
            told: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting = self._waiting.setdefault(execution_id, set())
            waiting.add(told)
            try:
                await self._listen(partition_of(execution_id))
                ended = await self._look(execution_id)
                if ended is not None:
                    return ended
                await told
            finally:
                waiting.discard(told)
                if not waiting and self._waiting.get(execution_id) is waiting:
                    del self._waiting[execution_id]

    async def _listen(self, partition: int) -> None:
        """Until the log of that partition is read from a position that lies behind us."""
        self._wanted_at = asyncio.get_running_loop().time()
        if partition not in self._partitions:
            self._partitions.add(partition)
            if self._events is not None:
                # It follows too little: begin anew with this partition among the others.
                self._is_open.clear()
                self._turn.set()
                if self._telling is not None:
                    self._telling.cancel()
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._read())
        if not self._is_open.is_set():
            await self._is_open.wait()

    async def _look(self, execution_id: str) -> Ended | None:
        return end_of(await self._engine.deps.store.read(execution_id, WITH_RESULT))

    async def _read(self) -> None:
        try:
            while not self._is_idle():
                await self._follow()
        finally:
            self._reading = None
            self._partitions.clear()

    async def _follow(self) -> None:
        self._turn.clear()
        own = self._partitions
        scope = EventScope(partitions=frozenset(own) if len(own) <= _NARROW else frozenset())
        try:
            self._events = await self._engine.events.subscribe_completions(scope)
            if self._turn.is_set():
                return
            self._is_open.set()
            self._tell_all()
            self._telling = asyncio.ensure_future(self._tell_each(self._events))
            await asyncio.wait([self._telling])
            if not self._telling.cancelled():
                self._telling.result()
        except FlowFabricError as fault:
            _log.warning("the log cannot be read, trying again: %s", fault)
            await asyncio.sleep(_PAUSE_S)
        finally:
            self._is_open.clear()
            if self._telling is not None:
                self._telling.cancel()
                await asyncio.wait([self._telling])
                self._telling = None
            if self._events is not None:
                await self._events.aclose()
                self._events = None

    async def _tell_each(self, events: Subscription) -> None:
        """Until nobody waits any more."""
        async for event in events:
            if isinstance(event, CompletionEvent):
                self._tell(event.execution_id)
            else:
                self._tell_all()
            if not self._waiting and self._is_idle():
                return

    def _is_idle(self) -> bool:
        """Whether nobody has waited for a while: beginning anew costs a waiter time."""
        since = asyncio.get_running_loop().time() - self._wanted_at
        return not self._waiting and since > _LINGER_S

    def _tell(self, execution_id: str) -> None:
        for told in self._waiting.pop(execution_id, ()):
            if not told.done():
                told.set_result(None)

    def _tell_all(self) -> None:
        """Some entries may have been missed: everybody looks again."""
        for execution_id in list(self._waiting):
            self._tell(execution_id)
