"""Retention: finished executions go when their time is over, with everything they own."""

from typing import Final

from flowfabric.duties.tally import Tally
from flowfabric.engine import Engine

BATCH: Final = 100
MOST_BATCHES: Final = 10


class Retention:
    name = "retention_trimmer"

    def __init__(self, engine: Engine) -> None:
        self._backend = engine.deps.store.backend

    async def visit(self) -> Tally:
        tally = Tally()
        for _ in range(MOST_BATCHES):
            purged = await self._backend.purge(BATCH)
            tally.processed(self.name, purged)
            if not purged:
                break
        return tally
