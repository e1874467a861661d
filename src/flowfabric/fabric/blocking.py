"""Blocking calls over asynchronous ones: a loop in a thread of its own, and what makes a method
of an asynchronous object one of its blocking facade, with the same signature."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from flowfabric.errors import ConfigError
from flowfabric.operations.declaration import Operation, SyncTransport, Transport

P = ParamSpec("P")
T = TypeVar("T")
S_co = TypeVar("S_co", covariant=True)


class LoopThread:
    """Starts with the first call; after `stop` the next call starts it again."""

    def __init__(self, check: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        """`check` refuses a loop that will not do."""
        self._check = check
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="flowfabric-sync", daemon=True
                )
                self._thread.start()
            return self._loop

    def run(self, call: Awaitable[T]) -> T:
        """The outcome of a call; an interrupt of the caller cancels it."""
        try:
            loop = self._checked()
        except ConfigError:
            if isinstance(call, Coroutine):
                call.close()
            raise
        future = asyncio.run_coroutine_threadsafe(_awaited(call), loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def each(self, source: AsyncIterator[T]) -> Iterator[T]:
        """What an asynchronous iterator yields, one by one."""
        try:
            while True:
                try:
                    yield self.run(anext(source))
                except StopAsyncIteration:
                    return
        finally:
            close = getattr(source, "aclose", None)
            if close is not None:
                self.run(close())

    def stop(self) -> None:
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def _checked(self) -> asyncio.AbstractEventLoop:
        loop = self.loop
        if threading.current_thread() is self._thread:
            raise ConfigError("sync: a blocking call from asynchronous code would wait for itself")
        self._check(loop)
        return loop


async def _awaited(call: Awaitable[T]) -> T:
    return await call


class Facade(Generic[S_co]):
    """The blocking side of an asynchronous object."""

    def __init__(self, source: S_co, thread: LoopThread) -> None:
        self._source = source
        self._thread = thread


def blocking(
    method: Callable[Concatenate[S_co, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Facade[S_co], P], T]:
    """The same method for a facade of its object."""

    @wraps(method)
    def call(facade: Facade[S_co], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return facade._thread.run(method(facade._source, *args, **kwargs))

    return call


def blocking_each(
    method: Callable[Concatenate[S_co, P], AsyncIterator[T]],
) -> Callable[Concatenate[Facade[S_co], P], Iterator[T]]:
    """The same for a method that yields values."""

    @wraps(method)
    def call(facade: Facade[S_co], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        return facade._thread.each(method(facade._source, *args, **kwargs))

    return call


def blocking_transport(transport: Transport, thread: LoopThread) -> SyncTransport:
    """The same transport for callers that block."""

    def bound(declared: Operation[..., Any]) -> Callable[..., Any]:
        call = transport(declared)
        return lambda *args, **kwargs: thread.run(call(*args, **kwargs))

    return bound
