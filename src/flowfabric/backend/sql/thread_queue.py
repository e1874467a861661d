"""Between the event loops of the callers and the store's threads: calls in, answers back."""

import asyncio
import os
import queue
import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from flowfabric.errors import Unavailable

T = TypeVar("T")


class Call(Generic[T]):
    """One call that waits, and the answer it will get."""

    __slots__ = ("error", "future", "loop", "result", "task")

    def __init__(self, task: T) -> None:
        self.task = task
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: Exception | None = None


class ThreadQueue(Generic[T]):
    """Calls for one thread or several. Closing it sends every thread one last, empty call, which
    the thread answers when it has cleaned up."""

    def __init__(self, name: str) -> None:
        """`name` says in messages which store it is."""
        self._name = name
        self._pid = 0
        self._queue: queue.SimpleQueue[Call[T] | Call[None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._refusal = "is not open: prepare it first"

    def open(self) -> None:
        self._pid = os.getpid()
        self._refusal = ""

    def put(self, task: T) -> asyncio.Future[Any]:
        if self._pid not in (0, os.getpid()):
            raise Unavailable(
                f"{self._name} was opened before a fork: open it in the process that"
                " uses it, and start processes with 'spawn'"
            )
        call = Call(task)
        with self._lock:
            if self._refusal:
                raise Unavailable(f"{self._name} {self._refusal}")
            self._queue.put(call)
        return call.future

    def get(self, timeout: float | None = None) -> Call[T] | Call[None]:
        """The next call; `queue.Empty` when none came in time."""
        return self._queue.get(timeout=timeout)

    def get_nowait(self) -> Call[T] | Call[None]:
        return self._queue.get_nowait()

    def close(self, threads: int) -> list[asyncio.Future[Any]]:
        """Take no more calls; what is done when each thread has ended."""
        with self._lock:
            if self._refusal:
                return []
            self._refusal = "is closed"
            last = [Call(None) for _ in range(threads)]
            for call in last:
                self._queue.put(call)
        return [call.future for call in last]


async def in_thread(function: Callable[[], T]) -> T:
    """Do something slow once, in a thread that is gone afterwards."""
    call = Call(function)
    thread = threading.Thread(target=_do, args=(call,), daemon=True)
    thread.start()
    try:
        result: T = await call.future
        return result
    finally:
        thread.join()


def _do(call: Call[Callable[[], Any]]) -> None:
    try:
        call.result = call.task()
    except Exception as fault:
        call.error = fault
    deliver([call])


def deliver(calls: Iterable[Call[Any]], then: Callable[[], None] | None = None) -> None:
    """Answer all calls, waking each loop once; `then` runs behind the answers of the first."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Call[Any]]] = {}
    for call in calls:
        by_loop.setdefault(call.loop, []).append(call)
    for loop, answered in by_loop.items():
        if post(loop, _answer, answered, then):
            then = None


def _answer(calls: list[Call[Any]], then: Callable[[], None] | None) -> None:
    for call in calls:
        # A caller that was cancelled does not wait any more; its work was done all the same.
        if call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.result)
    if then is not None:
        then()


def post(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *values: Any) -> bool:
    """Call a function in a loop from another thread; False when that loop is closed."""
    try:
        loop.call_soon_threadsafe(function, *values)
    except RuntimeError:
        return False
    return True
