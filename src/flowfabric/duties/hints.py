"""Hints: where a cluster looks for work and timers is written once more, in case a process died."""

from typing import Final

from flowfabric.duties.result import DutyResult
from flowfabric.engine import Engine

HINTS_S: Final = 15.0


class Hints:
    name = "hints"

    def __init__(self, engine: Engine) -> None:
        self._backend = engine.deps.store.backend

    async def visit(self) -> DutyResult:
        await self._backend.refresh_hints()
        return DutyResult()
