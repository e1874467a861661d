"""Calls that wait: for work, for frames, for an end. The client may go and the server may stop, and
both end the wait at once."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

from flowfabric.errors import ResourceExhausted, Unavailable
from flowfabric.server.reading import ClientDisconnected, Receive

T = TypeVar("T")
Why = Literal["gone", "draining"]

MAX_CLAIM_WAITS: Final = 10_000


class Drain:
    """Whether the server is about to stop, and the waits to end when it does."""

    def __init__(self) -> None:
        self.has_begun = False
        self._waiting: set[asyncio.Future[Why]] = set()

    def begin(self) -> None:
        """Let nobody wait any more."""
        self.has_begun = True
        for future in self._waiting:
            if not future.done():
                future.set_result("draining")

    def enter(self) -> "asyncio.Future[Why]":
        future: asyncio.Future[Why] = asyncio.get_running_loop().create_future()
        if self.has_begun:
            future.set_result("draining")
        self._waiting.add(future)
        return future

    def leave(self, future: "asyncio.Future[Why]") -> None:
        self._waiting.discard(future)


class CancellableWait:
    """One wait; `future` is done when there is no more reason to wait."""

    def __init__(self, drain: Drain, receive: Receive, op: str) -> None:
        self._drain = drain
        self._receive = receive
        self._op = op
        self.future = drain.enter()

    async def __aenter__(self) -> Self:
        self._watch = asyncio.create_task(self._listen())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._drain.leave(self.future)
        self._watch.cancel()
        # Its end keeps this wait in mind; both would stay until they are collected.
        del self._watch

    @property
    def is_over(self) -> bool:
        return self.future.done()

    def check(self) -> None:
        """Raise why the wait is over, if it is."""
        if not self.future.done():
            return
        if self.future.result() == "gone":
            raise ClientDisconnected
        raise Unavailable(f"backend op unavailable: {self._op}")

    async def run(self, work: Awaitable[T]) -> T:
        """The outcome of a read that may take long; given up when the wait is over."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self.future), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.check()
            return await task
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self.future.done():
            self.future.set_result("gone")


class ClaimWaits:
    """Claims that wait: one per worker process, and so many in all."""

    def __init__(
        self, most: int = MAX_CLAIM_WAITS, on_refusal: Callable[[], None] = lambda: None
    ) -> None:
        self._most = most
        self._on_refusal = on_refusal
        self._waiting: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, worker: tuple[str, str]) -> None:
        most = 1 if worker in self._waiting else self._most
        if worker in self._waiting or len(self._waiting) >= self._most:
            self._on_refusal()
            raise ResourceExhausted(
                f"too many concurrent claim_waits calls (server max: {most}); retry with backoff",
                pool="claim_waits",
                max=most,
                retry_after_ms=1_000,
            )
        self._waiting.add(worker)

    def leave(self, worker: tuple[str, str]) -> None:
        self._waiting.discard(worker)
