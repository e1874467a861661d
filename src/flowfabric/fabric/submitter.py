"""What a program asks that submits work and looks after it, wherever FlowFabric runs."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from typing import Final, Protocol, TypeVar
from uuid import uuid4

import msgspec

from flowfabric.core.plan import Family
from flowfabric.core.tokens import WaitpointToken
from flowfabric.operations.declaration import Transport
from flowfabric.operations.events import Cursor, Event, EventScope
from flowfabric.operations.execution_queries import Ended
from flowfabric.operations.executions import Submission
from flowfabric.operations.nouns import Calls
from flowfabric.operations.signals import Delivered, NewSignal, OpenWaitpoint
from flowfabric.operations.streams import FramePage, Tail
from flowfabric.operations.types import Page
from flowfabric.worker import codecs

T = TypeVar("T")

MOST_PER_PAGE: Final = 1_000


async def every(read: Callable[[str], Awaitable[Page[T]]]) -> AsyncIterator[T]:
    """The items of all pages; `read` is given the cursor of each."""
    cursor = ""
    while True:
        page = await read(cursor)
        for item in page.items:
            yield item
        cursor = page.next_cursor
        if not cursor:
            return


class Waiter(Protocol):
    """What differs between an engine in this process and a server: waiting for ends, following
    output and events, and raw bytes."""

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
        """How it ended, as soon as it has; None at the timeout. Concurrent waits share one
        listener."""
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
        return (await self.list_pending_waitpoints(execution_id, limit=MOST_PER_PAGE)).items

    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> AsyncGenerator[Event, None]:
        return await self._waiter.events(families, scope, cursor)


# ---- signals


class SignalCall(msgspec.Struct, frozen=True, kw_only=True):
    """A signal, its destination, and the token that permits it."""

    execution_id: str
    waitpoint_id: str
    token: WaitpointToken | str
    name: str
    payload: object = None
    category: str = "default"
    source_type: str = "external"
    source_identity: str = ""
    scope: str = "execution"
    signal_id: str = ""
    idempotency_key: str = ""
    correlation_id: str = ""

    # What people send may be personal, and the token is a credential.
    def __repr__(self) -> str:
        return f"SignalCall(execution_id={self.execution_id!r}, name={self.name!r})"


async def deliver(port: Submitter, call: SignalCall) -> Delivered:
    token = call.token
    body: bytes | None = None
    encoding = codecs.JSON
    if call.payload is not None:
        body, encoding = codecs.encode(call.payload)
    return await port.signal(
        call.execution_id,
        NewSignal(
            waitpoint_id=call.waitpoint_id,
            signal_id=call.signal_id or str(uuid4()),
            signal_name=call.name,
            signal_category=call.category,
            source_type=call.source_type,
            source_identity=call.source_identity,
            waitpoint_token=WaitpointToken(token) if isinstance(token, str) else token,
            payload=body,
            payload_encoding=encoding,
            idempotency_key=call.idempotency_key,
            correlation_id=call.correlation_id,
            target_scope=call.scope,
        ),
    )
