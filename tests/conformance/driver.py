"""Short words for what most tests do first: submit, claim, let time pass."""

from typing import Any

from flowfabric.core.record import Record
from flowfabric.duties.sweep import TimerSweep
from flowfabric.duties.tally import Tally
from flowfabric.engine import Engine
from flowfabric.engine.claims import Claimed, ClaimOrder
from flowfabric.engine.executions import Submission
from tests.clock import VirtualClock


class Driver:
    def __init__(self, engine: Engine, clock: VirtualClock, sweep: TimerSweep) -> None:
        self.engine = engine
        self.clock = clock
        self._sweep = sweep

    async def submit(self, **fields: Any) -> str:
        submitted = await self.engine.executions.create(Submission(**fields))
        return submitted.execution_id

    async def claim(self, **fields: Any) -> Claimed:
        """Claim one execution that must be there."""
        claimed = await self.claim_all(**fields)
        assert len(claimed) == 1, f"expected one claimed execution, got {len(claimed)}"
        return claimed[0]

    async def claim_all(self, **fields: Any) -> list[Claimed]:
        worker = {"worker_id": "pool", "worker_instance_id": "pool-1"}
        return await self.engine.claims.claim(ClaimOrder(**(worker | fields)))

    async def started(self, **fields: Any) -> Claimed:
        """A fresh execution, submitted and claimed."""
        await self.submit(**fields)
        lane = {"lanes": (fields["lane"],)} if "lane" in fields else {}
        return await self.claim(**lane)

    async def record(self, execution_id: str) -> Record:
        record, _ = await self.engine.deps.record(execution_id)
        return record

    async def sweep(self) -> Tally:
        """Act on whatever is due now."""
        return await self._sweep.visit()

    async def pass_time(self, ms: int) -> Tally:
        self.clock.advance(ms)
        return await self.sweep()
