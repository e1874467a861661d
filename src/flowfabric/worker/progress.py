"""Progress of an attempt on its way to the store: reports of one second are sent together."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from flowfabric.errors import ConfigError, FlowFabricError

APART_S: Final = 1.0


class ProgressUpdate(msgspec.Struct, frozen=True):
    """What is None stays as it was."""

    pct: int | None = None
    message: str | None = None

    def over(self, earlier: "ProgressUpdate") -> "ProgressUpdate":
        pct = earlier.pct if self.pct is None else self.pct
        return ProgressUpdate(pct, earlier.message if self.message is None else self.message)


_NOTHING: Final = ProgressUpdate()
Send = Callable[[ProgressUpdate], Awaitable[None]]


class ProgressSender:
    """Use from one event loop. A report that fails is merged into the next one."""

    def __init__(
        self,
        send: Send,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._send = send
        self._monotonic = monotonic
        self._sleep = sleep
        self._unsent = _NOTHING
        self._sent_at = -APART_S
        self._sending: asyncio.Task[None] | None = None

    def report(self, pct: int | None, message: str | None) -> None:
        if pct is not None and not 0 <= pct <= 100:
            raise ConfigError(f"pct: expected 0..100, got {pct}")
        self._unsent = ProgressUpdate(pct, message).over(self._unsent)
        if self._sending is None or self._sending.done():
            self._sending = asyncio.ensure_future(self._send_later())

    async def flush(self) -> None:
        """Send what is left now, because the attempt ends or pauses."""
        if self._sending is not None and not self._sending.done():
            self._sending.cancel()
            await asyncio.wait([self._sending])
        await self._send_now()

    async def _send_later(self) -> None:
        while self._unsent != _NOTHING:
            await self._sleep(max(0.0, self._sent_at + APART_S - self._monotonic()))
            await self._send_now()

    async def _send_now(self) -> None:
        update, self._unsent = self._unsent, _NOTHING
        if update == _NOTHING:
            return
        is_sent = False
        try:
            await self._send(update)
            is_sent = True
        except FlowFabricError as fault:
            # Without a lease there is nothing to report; any other fault may pass.
            is_sent = not fault.retryable
        finally:
            self._sent_at = self._monotonic()
            if not is_sent:
                self._unsent = self._unsent.over(update)
