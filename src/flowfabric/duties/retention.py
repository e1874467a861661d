"""Retention: finished executions go when their time is over, with everything they own."""

from typing import Final

from flowfabric.core.duty_filter import EVERYBODY, DutyFilter
from flowfabric.core.retention import LOG_LIMITS, LogLimits
from flowfabric.duties.result import DutyResult
from flowfabric.engine import Engine

BATCH: Final = 100
MOST_BATCHES: Final = 10


class Retention:
    name = "retention_trimmer"

    def __init__(
        self, engine: Engine, only: DutyFilter = EVERYBODY, log: LogLimits = LOG_LIMITS
    ) -> None:
        self._only = only
        self._log = log
        self._backend = engine.deps.store.backend
        self._keys = engine.keys

    async def visit(self) -> DutyResult:
        """Purge what is past its time, then forget signing keys that nobody can use any more."""
        result = DutyResult()
        await self._purge(result)
        result.processed(self.name, await self._keys.drop_stale())
        return result

    async def _purge(self, result: DutyResult) -> None:
        for _ in range(MOST_BATCHES):
            purged = await self._backend.purge(BATCH, only=self._only, log=self._log)
            result.processed(self.name, purged)
            if not purged:
                break
