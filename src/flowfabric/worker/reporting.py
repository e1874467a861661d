"""Reports of ended attempts: at once, in few calls, several of them in flight."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from flowfabric.operations.workers import Finish
from flowfabric.worker.attempts import ClaimedAttempt

Ending = tuple[ClaimedAttempt, Finish]

# Several small calls are in flight, so that the store works while handlers run, and none is so
# large that others wait for it.
MOST_FINISHED: Final = 32
_MOST_REPORTS: Final = 4
# The longest that a small batch waits for more while another report is in flight.
_LATEST_S: Final = 0.1


class Reporting:
    """A report claims as much as it finishes, so small ones would stay small. While one is in
    flight, a few endings wait for more, or for its answer, but not for one that takes long."""

    def __init__(
        self,
        report: Callable[[list[Ending]], Coroutine[Any, Any, None]],
        then: Callable[[], None],
    ) -> None:
        """`then` is called after every report."""
        self._report = report
        self._then = then
        self._loop = asyncio.get_running_loop()
        self._ended: list[Ending] = []
        self._late: asyncio.TimerHandle | None = None
        self.in_flight: set[asyncio.Task[None]] = set()

    def put(self, attempt: ClaimedAttempt, finish: Finish) -> None:
        """Those of one turn of the event loop are reported together."""
        if not self.in_flight:
            self._start(self._report_turn())
        elif len(self._ended) % MOST_FINISHED == 0:
            self._loop.call_soon(self._send)
        self._ended.append((attempt, finish))

    async def _report_turn(self) -> None:
        await self._report(self._taken())

    def _taken(self) -> list[Ending]:
        batch, self._ended = self._ended[:MOST_FINISHED], self._ended[MOST_FINISHED:]
        return batch

    def _send(self, least: int = MOST_FINISHED) -> None:
        while self._ended and len(self.in_flight) < _MOST_REPORTS:
            if self.in_flight and len(self._ended) < least:
                self._remember()
                return
            self._start(self._report(self._taken()))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        report = self._loop.create_task(work)
        self.in_flight.add(report)
        report.add_done_callback(self._sent)

    def _remember(self) -> None:
        if self._late is None or self._late.when() < self._loop.time():
            self._late = self._loop.call_later(_LATEST_S, self._send, 1)

    def _sent(self, report: asyncio.Task[None]) -> None:
        self.in_flight.discard(report)
        self._send()
        self._then()
