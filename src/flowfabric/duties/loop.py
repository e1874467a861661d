"""The loop around a duty: fixed rate, and started again when it dies."""

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from typing import Final, Protocol

from flowfabric.backend.base import TopicSubscription
from flowfabric.backend.notifier import LocalNotifier
from flowfabric.backend.supervision import supervise
from flowfabric.duties.result import DutyResult
from flowfabric.engine.draining import drain
from flowfabric.errors import FlowFabricError
from flowfabric.telemetry.observer import NO_OBSERVER, Observer

_log = logging.getLogger("flowfabric.duties")

SHORTEST_INTERVAL_S: Final = 0.1


class Duty(Protocol):
    @property
    def name(self) -> str: ...

    async def visit(self) -> DutyResult: ...


class DutyLoop:
    """Runs one duty until it is stopped. An error of a visit never ends the loop."""

    def __init__(
        self,
        duty: Duty,
        interval_s: float,
        observer: Observer = NO_OBSERVER,
        wakeup: TopicSubscription | None = None,
    ) -> None:
        self.duty = duty
        self._observer = observer
        self.cycles = 0
        self._interval = max(interval_s, SHORTEST_INTERVAL_S)
        # Its notifications begin the next visit sooner; to close it stops the loop.
        self._wakeup = wakeup or LocalNotifier().subscribe()

    def stop(self) -> None:
        self._wakeup.close()

    async def run(self) -> None:
        """Until it is stopped; the first visit comes at a random instant of the first interval."""
        if await self._sleep(random.random() * self._interval):
            return
        name = self.duty.name
        await supervise(name, self._cycles, lambda: self._observer.restarted(name), self._sleep)

    async def _cycles(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._wakeup.is_closed:
            started = loop.time()
            await self._cycle()
            await self._wakeup.wait(max(0.0, started + self._interval - loop.time()))
            # Many notifications make no more visits than the shortest interval does.
            await self._sleep(started + SHORTEST_INTERVAL_S - loop.time())

    async def _cycle(self) -> None:
        started = time.perf_counter()
        try:
            result = await self.duty.visit()
        except FlowFabricError:
            self._observer.processed(self.duty.name, "error", 1)
            _log.exception("%s: a visit failed; the next one runs as scheduled", self.duty.name)
            return
        finally:
            self.cycles += 1
            self._observer.cycled(self.duty.name, time.perf_counter() - started)
        self._emit(result)
        done, failed = result.total("processed"), result.total("error")
        if done or failed:
            _log.info("%s: %d processed, %d failed", self.duty.name, done, failed)

    def _emit(self, result: DutyResult) -> None:
        for (name, outcome), n in result.counts.items():
            self._observer.processed(name, outcome, n)
        self._observer.backed_off(self.duty.name, result.left_alone)
        self._observer.drained(result.drained)
        if result.cancels_left is not None:
            self._observer.cancel_backlog(result.cancels_left)

    async def _sleep(self, seconds: float) -> bool:
        """Sleep unless stopped, whatever is notified; whether it was stopped."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not self._wakeup.is_closed and (left := end - loop.time()) > 0:
            await self._wakeup.wait(left)
        return self._wakeup.is_closed


class Duties:
    """All loops of a process, started and stopped together."""

    def __init__(self, loops: Sequence[DutyLoop]) -> None:
        self.loops = tuple(loops)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(loop.run(), name=loop.duty.name) for loop in self.loops]

    async def stop(self) -> bool:
        """Stop between visits, and whether all did in time; what does not is abandoned, which loses
        nothing."""
        for loop in self.loops:
            loop.stop()
        tasks, self._tasks = self._tasks, []
        abandoned = await drain(lambda: [task for task in tasks if not task.done()])
        for task in tasks:
            if not task.done() or task.cancelled():
                _log.warning("duty %s did not stop in time; abandoned", task.get_name())
        return not abandoned
