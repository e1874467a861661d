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
        # By engine, what returns when its workers have nothing to do.
        self._driven: dict[Engine, Callable[[], Awaitable[None]]] = {}

    def __call__(self) -> int:
        return self._now

    def drive(self, engine: Engine, settle: Callable[[], Awaitable[None]]) -> None:
        """Move the time of this engine; `settle` returns when its workers have nothing to do."""
        self._driven[engine] = settle

    def leave(self, engine: Engine) -> None:
        """Move the time of this engine no longer."""
        self._driven.pop(engine, None)

    async def advance(self, length: Duration) -> None:
        assert self._driven, "no kit goes by this clock: open it with `open_kit(clock)`"
        end = self._now + milliseconds(length, "length")
        sweeps, is_stuck = [TimerSweep(one) for one in self._driven], False
        await self._settle()
        while instants := await self._due(end, later=is_stuck):
            self._now = max(self._now, min(instants))
            done = [(await sweep.visit()).total("processed") for sweep in sweeps]
            await self._settle()
            # What is due and does not move must not keep what is due later from its turn.
            is_stuck = not any(done)
        self._now = end
        await self._settle()

    async def _settle(self) -> None:
        for settle in list(self._driven.values()):
            await settle()

    async def _due(self, end: int, *, later: bool) -> list[int]:
        """The next instants up to the end at which something is due. All workers are idle, so none
        sees that the clock is at the end while this reads."""
        now, self._now = self._now, end
        try:
            limit = _PAGE if later else 1
            pages = [await one.deps.store.backend.due(limit) for one in self._driven]
        finally:
            self._now = now
        instants = [one for page in pages for one in _instants(page)]
        return [one for one in instants if one > now or not later]


def _instants(page: DuePage) -> list[int]:
    return [
        *(due_at_of(one) for one in page.records),
        *(one.due_at for one in page.flows),
        *(due_at for due_at, _ in page.budgets),
        *(one.due_at for one in page.config),
    ]
