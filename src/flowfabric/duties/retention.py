"""Retention: finished executions go when their time is over, with everything they own."""

from typing import Final

from flowfabric.core.duty_filter import EVERYBODY, DutyFilter
from flowfabric.duties.tally import Tally
from flowfabric.engine import Engine

BATCH: Final = 100
MOST_BATCHES: Final = 10


class Retention:
    name = "retention_trimmer"

    def __init__(self, engine: Engine, only: DutyFilter = EVERYBODY) -> None:
        self._only = only
        self._backend = engine.deps.store.backend
        self._keys = engine.keys

    async def visit(self) -> Tally:
        """Purge what is past its time, then forget signing keys that nobody can use any more."""
        tally = Tally()
        await self._purge(tally)
        tally.processed(self.name, await self._keys.drop_stale())
        return tally

    async def _purge(self, tally: Tally) -> None:
        for _ in range(MOST_BATCHES):
            purged = await self._backend.purge(BATCH, only=self._only)
            tally.processed(self.name, purged)
            if not purged:
                break
