"""What a program asks that submits work and looks after it, wherever FlowFabric runs."""

from collections.abc import AsyncGenerator, Collection
from typing import Final, Protocol

from flowfabric.core.plan import Family
from flowfabric.operations.declaration import Transport
from flowfabric.operations.events import Cursor, Event, EventScope
from flowfabric.operations.execution_queries import Ended
from flowfabric.operations.executions import Submission
from flowfabric.operations.nouns import Calls
from flowfabric.operations.signals import OpenWaitpoint
from flowfabric.operations.streams import FramePage, Tail

_MOST_WAITPOINTS: Final = 1_000


class Waiter(Protocol):
    """What an engine in this process does otherwise than a server over HTTP: waiting for ends,
    following output and events, and raw bytes."""

    async def call(self, submission: Submission) -> Ended: ...

    async def wait_ended(self, execution_id: str, timeout_s: float | None) -> Ended | None: ...

    async def tail(self, execution_id: str, attempt_index: int, asked: Tail) -> FramePage: ...

    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> AsyncGenerator[Event, None]: ...

    async def result(self, execution_id: str) -> bytes | None: ...

    async def input(self, execution_id: str) -> bytes: ...


class Submitter(Calls):
    """Every operation over one transport."""

    def __init__(self, transport: Transport, waiter: Waiter) -> None:
        super().__init__(transport)
        self._waiter = waiter

    async def now(self) -> int:
        """The store's clock."""
        return (await self.describe()).now

    async def call(self, submission: Submission) -> Ended:
        """Submit, and wait for the end."""
        return await self._waiter.call(submission)

    async def wait_ended(self, execution_id: str, timeout_s: float | None = None) -> Ended | None:
        """How it ended, as soon as it has; None when the time is up before. Many may wait at once
        for the price of one listener."""
        return await self._waiter.wait_ended(execution_id, timeout_s)

    async def result(self, execution_id: str) -> bytes | None:
        """The bytes of a result; None while there is none."""
        return await self._waiter.result(execution_id)

    async def input(self, execution_id: str) -> bytes:
        """The bytes that were submitted."""
        return await self._waiter.input(execution_id)

    async def tail(self, execution_id: str, attempt_index: int, asked: Tail) -> FramePage:
        """A page of output for a reader that stays."""
        return await self._waiter.tail(execution_id, attempt_index, asked)

    async def waitpoints(self, execution_id: str) -> list[OpenWaitpoint]:
        """Those that take signals now."""
        return (await self.list_pending_waitpoints(execution_id, limit=_MOST_WAITPOINTS)).items

    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> AsyncGenerator[Event, None]:
        return await self._waiter.events(families, scope, cursor)
