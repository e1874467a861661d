"""What a program asks that submits work and looks after it, wherever FlowFabric runs."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection
from typing import Any, Final, Protocol, TypeVar
from uuid import uuid4

from flowfabric.core.plan import Family
from flowfabric.core.tokens import WaitpointToken
from flowfabric.operations.declaration import Transport
from flowfabric.operations.events import Cursor, Event, EventScope
from flowfabric.operations.execution_queries import Ended
from flowfabric.operations.executions import Submission
from flowfabric.operations.nouns import Calls
from flowfabric.operations.signals import NewSignal, OpenWaitpoint
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

    async def call(self, submission: Submission) -> Ended:
        """Submit, and wait for the end."""

    async def wait_ended(self, execution_id: str, timeout_s: float | None = None) -> Ended | None:
        """How it ended, as soon as it has; None at the timeout. Concurrent waits share one
        listener."""

    async def tail(self, execution_id: str, attempt_index: int, asked: Tail) -> FramePage:
        """A page of output for a reader that stays."""

    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> AsyncGenerator[Event, None]: ...

    async def result(self, execution_id: str) -> bytes | None:
        """The bytes of a result; None while there is none."""

    async def input(self, execution_id: str) -> bytes:
        """The bytes that were submitted."""


class Submitter(Calls):
    """Every operation over one transport."""

    def __init__(self, transport: Transport, waiter: Waiter) -> None:
        super().__init__(transport)
        self.call, self.wait_ended = waiter.call, waiter.wait_ended
        self.result, self.input = waiter.result, waiter.input
        self.tail, self.events = waiter.tail, waiter.events

    async def now(self) -> int:
        """The store's clock."""
        return (await self.describe()).now

    async def waitpoints(self, execution_id: str) -> list[OpenWaitpoint]:
        """Those that take signals now."""
        return (await self.list_pending_waitpoints(execution_id, limit=MOST_PER_PAGE)).items


# ---- signals


def new_signal(
    waitpoint_id: str,
    token: WaitpointToken | str,
    name: str,
    payload: object = None,
    *,
    category: str = "default",
    scope: str = "execution",
    **more: str,
) -> NewSignal:
    """A signal and the token that permits it; `more` are further members."""
    body, encoding = (None, codecs.JSON) if payload is None else codecs.encode(payload)
    given: dict[str, Any] = {"source_type": "external", "source_identity": "", **more}
    given["signal_id"] = given.get("signal_id") or str(uuid4())
    return NewSignal(
        waitpoint_id=waitpoint_id,
        signal_name=name,
        signal_category=category,
        waitpoint_token=WaitpointToken(token) if isinstance(token, str) else token,
        payload=body,
        payload_encoding=encoding,
        target_scope=scope,
        **given,
    )
