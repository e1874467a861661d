"""What has ended, on its way to the engine: at once, in few calls, and several under way."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from flowfabric.operations.workers import Finish
from flowfabric.worker.attempts import ClaimedAttempt

Ending = tuple[ClaimedAttempt, Finish]

# Several calls under way, each of a few, so that the store works while handlers run; and never so
# many in one that others have to wait for it.
MOST_FINISHED: Final = 32
_MOST_REPORTS: Final = 4
# So long a few wait for more while another report is under way.
_LATEST_S: Final = 0.1


class Reporting:
    """A report claims as much as it finishes, so small ones would stay small: while one is under
    way a few endings wait for more, or for it to come back, but not for one that takes long."""

    def __init__(
        self,
        report: Callable[[list[Ending]], Coroutine[Any, Any, None]],
        then: Callable[[], None],
    ) -> None:
        """`then` is called behind every report."""
        self._report = report
        self._then = then
        self._loop = asyncio.get_running_loop()
        self._ended: list[Ending] = []
        self._late: asyncio.TimerHandle | None = None
        self.under_way: set[asyncio.Task[None]] = set()

    def put(self, attempt: ClaimedAttempt, finish: Finish) -> None:
        """All of one turn of the loop are reported together."""
        if not self.under_way:
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
        while self._ended and len(self.under_way) < _MOST_REPORTS:
            if self.under_way and len(self._ended) < least:
                self._remember()
                return
            self._start(self._report(self._taken()))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        report = self._loop.create_task(work)
        self.under_way.add(report)
        report.add_done_callback(self._sent)

    def _remember(self) -> None:
        if self._late is None or self._late.when() < self._loop.time():
            self._late = self._loop.call_later(_LATEST_S, self._send, 1)

    def _sent(self, report: asyncio.Task[None]) -> None:
        self.under_way.discard(report)
        self._send()
        self._then()
