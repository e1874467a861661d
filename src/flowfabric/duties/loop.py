"""The loop around a duty: fixed rate, and started again when it dies."""

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from typing import Final, Protocol

from flowfabric.duties.result import DutyResult
from flowfabric.errors import FlowFabricError
from flowfabric.telemetry.observer import NO_OBSERVER, Observer

_log = logging.getLogger("flowfabric.duties")

SHORTEST_INTERVAL_S: Final = 0.1
RESTART_S: Final = 5.0
STOP_S: Final = 15.0


class Duty(Protocol):
    @property
    def name(self) -> str: ...

    async def visit(self) -> DutyResult: ...


class DutyLoop:
    """Runs one duty until it is stopped. An error of a visit never ends the loop."""

    def __init__(self, duty: Duty, interval_s: float, observer: Observer = NO_OBSERVER) -> None:
        self.duty = duty
        self._observer = observer
        self.cycles = 0
        self.restarts = 0
        self._interval = max(interval_s, SHORTEST_INTERVAL_S)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Supervise: an unexpected end is logged, waited out, and followed by a new start."""
        if await self._sleep(random.random() * self._interval):
            return
        while not self._stopping.is_set():
            try:
                await self._cycles()
            except Exception:
                self.restarts += 1
                self._observer.restarted(self.duty.name)
                _log.exception(
                    "%s ended unexpectedly; restart %d follows", self.duty.name, self.restarts
                )
                await self._sleep(RESTART_S)

    async def _cycles(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._stopping.is_set():
            started = loop.time()
            await self._cycle()
            await self._sleep(max(0.0, self._interval - (loop.time() - started)))

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
        """Sleep unless stopped; whether it was stopped."""
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True


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
        if not self._tasks:
            return True
        _, late = await asyncio.wait(self._tasks, timeout=STOP_S)
        for task in late:
            _log.warning("duty %s did not stop in %.0f s; abandoned", task.get_name(), STOP_S)
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        return not late
