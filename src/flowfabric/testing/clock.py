"""A clock that a test moves."""

from collections.abc import Awaitable, Callable
from typing import Final

from flowfabric.backend.types import DuePage
from flowfabric.core.record import due_at_of
from flowfabric.duties.sweep import TimerSweep
from flowfabric.engine import Engine
from flowfabric.worker.durations import Duration, milliseconds

START_MS: Final = 1_700_000_000_000
_PAGE: Final = 1_000


class VirtualClock:
    """Stands still until `advance`, which stops at every instant something is due, has it done, and
    lets the workers finish before it continues."""

    def __init__(self, now: int = START_MS) -> None:
        self._now = now
        self._engine: Engine | None = None
        self._settle: Callable[[], Awaitable[None]] | None = None

    def __call__(self) -> int:
        return self._now

    def drive(self, engine: Engine, settle: Callable[[], Awaitable[None]]) -> None:
        """Move the time of this engine; `settle` returns when its workers have nothing to do."""
        self._engine, self._settle = engine, settle

    async def advance(self, length: Duration) -> None:
        assert self._engine is not None
        assert self._settle is not None
        end = self._now + milliseconds(length, "length")
        sweep, is_stuck = TimerSweep(self._engine), False
        await self._settle()
        while instants := await self._due(end, later=is_stuck):
            self._now = max(self._now, min(instants))
            result = await sweep.visit()
            await self._settle()
            # What is due and does not move must not keep what is due later from its turn.
            is_stuck = not result.total("processed")
        self._now = end
        await self._settle()

    async def _due(self, end: int, *, later: bool) -> list[int]:
        """The next instants up to the end at which something is due. All workers are idle, so none
        sees that the clock is at the end while this reads."""
        assert self._engine is not None
        now, self._now = self._now, end
        try:
            page = await self._engine.deps.store.backend.due(_PAGE if later else 1)
        finally:
            self._now = now
        return [one for one in _instants(page) if one > now or not later]


def _instants(page: DuePage) -> list[int]:
    return [
        *(due_at_of(one) for one in page.records),
        *(one.due_at for one in page.flows),
        *(due_at for due_at, _ in page.budgets),
        *(one.due_at for one in page.config),
    ]
