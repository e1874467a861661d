"""What a worker asks of an engine in its process besides operations."""

import asyncio
from collections.abc import Sequence

from flowfabric.engine import Engine
from flowfabric.engine.executions.waits import WITH_RESULT, end_of
from flowfabric.operations.ends import Ended
from flowfabric.operations.workers import Claim


class EngineReads:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def input(self, execution_id: str) -> bytes:
        return (await self._engine.reads.read_execution_context(execution_id)).input_payload

    async def ended(self, execution_ids: Sequence[str]) -> list[Ended | None]:
        read = self._engine.deps.store.read
        found = await asyncio.gather(*(read(one, WITH_RESULT) for one in execution_ids))
        return [end_of(seen) for seen in found]

    async def children_flow(self, claim: Claim) -> str:
        return await self._engine.flows.children_flow(claim.execution_id)
