"""Going on with graph work that one step had to leave over."""

import asyncio
import logging

from flowfabric.engine.deps import Deps

_log = logging.getLogger("flowfabric.settling")


class Settling:
    """Continues cut-off cascades at once; if this process dies, the flow's timer does it."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._tasks: set[asyncio.Task[None]] = set()

    def go_on(self, execution_id: str, flow_id: str) -> None:
        task = asyncio.ensure_future(self._go_on(execution_id, flow_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self, flow_id: str) -> None:
        """Do bounded steps until nothing is left."""
        while True:
            (answer,) = await self._deps.store.backend.settle([flow_id])
            if isinstance(answer, Exception):
                raise answer
            if not answer:
                return

    async def drain(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _go_on(self, execution_id: str, flow_id: str) -> None:
        try:
            if not flow_id:
                record, _ = await self._deps.record(execution_id)
                flow_id = record.flow_id
            await self.settle(flow_id)
        except Exception:
            _log.exception("settling behind %s stopped; its flow's timer goes on", execution_id)
