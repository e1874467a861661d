"""What a deployment does for itself: it forgets what is past its time, repeats hints, and reads
tokens again."""

from typing import Final

from flowfabric.core.duty_filter import EVERYBODY, DutyFilter
from flowfabric.core.retention import LOG_LIMITS, LogLimits
from flowfabric.duties.result import DutyResult
from flowfabric.engine import Engine

BATCH: Final = 100
MOST_BATCHES: Final = 10
HINTS_S: Final = 15.0
TOKENS_S: Final = 1.0


class Retention:
    """Finished executions go when their time is over, with everything they own."""

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


class Hints:
    """Where a cluster looks for work and timers is written once more, in case a process died."""

    name = "hints"

    def __init__(self, engine: Engine) -> None:
        self._backend = engine.deps.store.backend

    async def visit(self) -> DutyResult:
        await self._backend.refresh_hints()
        return DutyResult()


class TokenWatch:
    """Reads the API tokens again when the configuration changes, and every second in any case: a
    token that another process made or revoked counts here, too."""

    name = "token_watch"

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def visit(self) -> DutyResult:
        await self._engine.api_tokens.refresh()
        return DutyResult()
