"""Requests that wait for work, frames or an end. Such a wait ends at once when the client
disconnects or the server drains."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

from flowfabric.engine.permits import Permits
from flowfabric.errors import ResourceExhausted, Unavailable
from flowfabric.server.decoding import ClientDisconnected, Receive

T = TypeVar("T")
Reason = Literal["disconnected", "draining"]

MAX_CLAIM_WAITS: Final = 10_000
MAX_WATCHES: Final = 10_000
# Requests that wait for an end, for frames, or for events.
MAX_LONG_POLLS: Final = 10_000


class Drain:
    """Whether the server is shutting down, and the waits that end when it does."""

    def __init__(self) -> None:
        self.has_begun = False
        self._waiting: set[asyncio.Future[Reason]] = set()

    def begin(self) -> None:
        self.has_begun = True
        for future in self._waiting:
            if not future.done():
                future.set_result("draining")

    def enter(self) -> "asyncio.Future[Reason]":
        future: asyncio.Future[Reason] = asyncio.get_running_loop().create_future()
        if self.has_begun:
            future.set_result("draining")
        self._waiting.add(future)
        return future

    def leave(self, future: "asyncio.Future[Reason]") -> None:
        self._waiting.discard(future)


class CancellableWait:
    """One wait; `future` is done when the client has disconnected or the server drains."""

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
        # A reference cycle: both would stay until the garbage collector runs.
        del self._watch

    @property
    def is_over(self) -> bool:
        return self.future.done()

    def check(self) -> None:
        """Raise why the wait is over, if it is."""
        if not self.future.done():
            return
        if self.future.result() == "disconnected":
            raise ClientDisconnected
        raise Unavailable(f"backend op unavailable: {self._op}")

    async def run(self, work: Awaitable[T]) -> T:
        """The result of `work`, which is cancelled when the wait is over."""
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
            self.future.set_result("disconnected")


class ClaimWaits:
    """Claims that wait for work: at most one per worker process, and a maximum for the server."""

    def __init__(
        self, most: int = MAX_CLAIM_WAITS, on_refusal: Callable[[], None] = lambda: None
    ) -> None:
        self._permits = Permits("claim_waits", most)
        self._permits.on_refusal = lambda _: on_refusal()
        self._on_refusal = on_refusal
        self._waiting: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, worker: tuple[str, str], caller: str = "") -> None:
        if worker in self._waiting:
            self._on_refusal()
            raise ResourceExhausted(
                "too many concurrent claim_waits calls (server max: 1); retry with backoff",
                pool="claim_waits",
                max=1,
                retry_after_ms=1_000,
            )
        self._permits.enter(caller)
        self._waiting.add(worker)

    def leave(self, worker: tuple[str, str], caller: str = "") -> None:
        self._waiting.discard(worker)
        self._permits.leave(caller)
