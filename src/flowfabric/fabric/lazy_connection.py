"""The connection of a fabric: opened by whoever comes first, shared by all, closed once."""

import asyncio
from types import TracebackType
from typing import Self

from flowfabric.errors import ConfigError
from flowfabric.fabric.connecting import Connect, Connection
from flowfabric.fabric.submitter import Submitter
from flowfabric.fabric.tracing import traced
from flowfabric.telemetry.observer import NO_OBSERVER, Observer
from flowfabric.worker.calls import WorkerCalls
from flowfabric.worker.layers import Hook, layered


class LazyConnection:
    """Opens on first use; close it with `await fabric.close()` or use it in `async with`."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._opening: asyncio.Future[Connection] | None = None
        self._hooks: tuple[Hook, ...] = ()
        self._layered: tuple[Submitter, WorkerCalls] | None = None
        self._observer = NO_OBSERVER

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop it is open on."""
        return None if self._opening is None else self._opening.get_loop()

    async def open(self) -> Connection:
        """The connection, made by whoever comes first; one that failed is tried anew."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._connect())
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except BaseException:
            if opening.done() and self._opening is opening:
                self._opening = None
            raise

    async def close(self) -> None:
        opening, self._opening = self._opening, None
        self._layered = None
        if opening is not None:
            await (await opening).close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def observe(self, observer: Observer) -> None:
        """Tell somebody what happens, e.g. `Metrics()`; from the next opening on."""
        if self._opening is not None:
            raise ConfigError("observe: the fabric is open already; ask for it before")
        self._observer = observer

    def layer(self, *hooks: Hook) -> None:
        """Wrap the calls of submitter and worker; the hook given last is outermost."""
        self._hooks += hooks
        self._layered = None

    async def submitter(self) -> Submitter:
        return (await self._calls())[0]

    async def _worker_calls(self) -> WorkerCalls:
        return (await self._calls())[1]

    async def _calls(self) -> tuple[Submitter, WorkerCalls]:
        if self._layered is None:
            connection = await self.open()
            submitter = layered(traced(connection.submitter), *self._hooks)
            self._layered = submitter, layered(traced(connection.worker), *self._hooks)
        return self._layered
