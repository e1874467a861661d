"""Going on with graph work and cancels that one step had to leave over."""

import asyncio
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any, Final

from flowfabric.core.backoff import Backoff
from flowfabric.engine.deps import Deps
from flowfabric.engine.draining import drain
from flowfabric.errors import FlowFabricError

_log = logging.getLogger("flowfabric.settling")

# How often a step is tried while the store has passing faults; then the flow's timer has it.
TRIES: Final = 3
BACKOFF: Final = Backoff(0.2, 0.4)


class Settling:
    """Continues cut-off cascades and cancels at once, one dispatcher a flow; if this process dies,
    the flow's timer does it."""

    def __init__(self, deps: Deps, backoff: Backoff = BACKOFF) -> None:
        self._deps = deps
        self._backoff = backoff
        self._running: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._background: set[asyncio.Task[None]] = set()

    def go_on(self, execution_id: str, flow_id: str) -> None:
        """Go on with a flow in the background; without its id, that of the execution."""
        self._spawn(self._go_on(execution_id, flow_id))

    async def settle(self, flow_id: str) -> None:
        """Do bounded steps until nothing is left that could be done."""
        task = self._running.get(flow_id)
        if task is None or task.done():
            task = asyncio.ensure_future(self._run(flow_id))
            self._running[flow_id] = task
            task.add_done_callback(partial(self._ended, flow_id))
        else:
            # What it is about to find finished may not contain the caller's work.
            self._again.add(flow_id)
        await asyncio.shield(task)

    async def drain(self, *, waits: bool = True) -> bool:
        """Wait until all work under way is done, and whether it was; what takes too long is left to
        the timers."""
        flows = set(self._running)
        abandoned = await drain(lambda: {*self._background, *self._running.values()}, waits=waits)
        if abandoned:
            _log.warning("gave up waiting for %d flows to settle; their timers go on", len(flows))
        return not abandoned

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _go_on(self, execution_id: str, flow_id: str) -> None:
        try:
            if not flow_id:
                record, _ = await self._deps.record(execution_id)
                flow_id = record.flow_id
            await self.settle(flow_id)
        except Exception:
            subject = f"flow {flow_id}" if flow_id else execution_id
            _log.exception("settling %s failed; the timer of the flow tries again", subject)

    async def _run(self, flow_id: str) -> None:
        while True:
            self._again.discard(flow_id)
            more = await self._step_patiently(flow_id)
            if not more and flow_id not in self._again:
                return

    async def _step_patiently(self, flow_id: str) -> bool:
        for failures in range(1, TRIES):
            try:
                return await self._step(flow_id)
            except FlowFabricError as fault:
                if not fault.retryable:
                    raise
            await asyncio.sleep(self._backoff.pause_s(failures))
        return await self._step(flow_id)

    async def _step(self, flow_id: str) -> bool:
        (answer,) = await self._deps.store.backend.settle([flow_id])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _ended(self, flow_id: str, task: asyncio.Task[None]) -> None:
        if self._running.get(flow_id) is task:
            del self._running[flow_id]
            self._again.discard(flow_id)
        if not task.cancelled():
            # Callers that await the task get the error; without one it counts as retrieved here.
            task.exception()
