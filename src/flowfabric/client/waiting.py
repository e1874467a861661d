"""Waiting through a server: for the ends of executions, for output, for events."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Collection
from typing import Final
from urllib.parse import unquote

from msgspec.structs import replace

from flowfabric.client.http import Response
from flowfabric.client.operations import http_transport
from flowfabric.client.rest import BACKOFF, Rest, get_execution
from flowfabric.core.plan import Family
from flowfabric.errors import (
    ExecutionNotFound,
    FlowFabricError,
    InvalidInput,
    NotFound,
    StreamDisconnected,
    Unavailable,
)
from flowfabric.operations.events import Cursor, Event, EventQuery, EventScope
from flowfabric.operations.execution_queries import (
    ATTEMPT_HEADER,
    COMPLETED_HEADER,
    ENCODING_HEADER,
    ENDS,
    Ended,
    ExecutionInfo,
)
from flowfabric.operations.executions import Submission
from flowfabric.operations.nouns import Calls
from flowfabric.operations.streams import FramePage, Tail
from flowfabric.operations.types import Page

_log = logging.getLogger("flowfabric.client")

_WAIT_MS: Final = 25_000
# Waits in flight at once; with more callers than these, each takes short turns.
_MOST_WAITS: Final = 100
_TURN_MS: Final = 1_000
_PAGE: Final = 256


class HttpWaiter:
    def __init__(self, rest: Rest) -> None:
        self.rest = rest
        self._ends = Ends(rest)
        self._calls = Calls(http_transport(rest))

    async def call(self, submission: Submission) -> Ended:
        submitted = await self._calls.submit(submission)
        ended = await self._ends.wait(submitted.execution_id, None)
        assert ended is not None
        return ended

    async def wait_ended(self, execution_id: str, timeout_s: float | None = None) -> Ended | None:
        return await self._ends.wait(execution_id, timeout_s)

    async def tail(self, execution_id: str, attempt_index: int, asked: Tail) -> FramePage:
        return await self._calls.tail_stream(execution_id, attempt_index, asked)

    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> AsyncGenerator[Event, None]:
        return await _Feed(self.rest, families, scope).begin(cursor)

    async def result(self, execution_id: str) -> bytes | None:
        try:
            return (await self.rest.fetch(get_execution(execution_id, "result"))).content
        except NotFound:
            return None

    async def input(self, execution_id: str) -> bytes:
        return (await self.rest.fetch(get_execution(execution_id, "input"))).content


def _may_recover(fault: FlowFabricError, rest: Rest) -> bool:
    """Whether to wait on: a server that has answered before may come back."""
    return rest.has_answered and (fault.retryable or isinstance(fault, Unavailable))


# ---- ends


class Ends:
    """How executions ended."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest
        self._calls = Calls(http_transport(rest))
        self._turns = asyncio.Semaphore(_MOST_WAITS)
        self._waiting = 0

    async def look(self, execution_id: str, wait_ms: int = 0) -> Ended | None:
        """How it ended; None while it is live. An unknown one is refused.

        A result tells by itself that the execution completed; any other end takes a second
        request. One that completes between the two is asked for its result again.
        """
        done = await self._result(execution_id, wait_ms)
        if done is not None:
            return done
        ended = _ended(await self._calls.describe_execution(execution_id))
        if ended is not None and ended.state == "completed":
            return await self._result(execution_id) or ended
        return ended

    async def _result(self, execution_id: str, wait_ms: int = 0) -> Ended | None:
        try:
            response = await self._rest.fetch(get_execution(execution_id, "result", wait_ms))
        except NotFound:
            return None
        return _completed(execution_id, response) if ATTEMPT_HEADER in response.headers else None

    async def wait(self, execution_id: str, timeout_s: float | None) -> Ended | None:
        """As soon as it has ended; None at the timeout, and for an unknown one."""
        self._waiting += 1
        try:
            async with asyncio.timeout(timeout_s or None):
                return await self._until(execution_id, is_single_look=timeout_s == 0)
        except (TimeoutError, ExecutionNotFound):
            return None
        finally:
            self._waiting -= 1

    async def _until(self, execution_id: str, *, is_single_look: bool) -> Ended | None:
        failures = 0
        while True:
            try:
                ended = await self._turn(execution_id, is_single_look=is_single_look)
                if ended is not None or is_single_look:
                    return ended
                failures = 0
            except FlowFabricError as fault:
                if not _may_recover(fault, self._rest):
                    raise
                failures += 1
                _log.warning("waiting for %s failed, trying again: %s", execution_id, fault)
                await asyncio.sleep(BACKOFF.pause_s(failures, random.random()))

    async def _turn(self, execution_id: str, *, is_single_look: bool) -> Ended | None:
        if is_single_look:
            return await self.look(execution_id)
        async with self._turns:
            is_crowded = self._waiting > _MOST_WAITS
            return await self.look(execution_id, _TURN_MS if is_crowded else _WAIT_MS)


def _completed(execution_id: str, response: Response) -> Ended:
    return Ended(
        execution_id=execution_id,
        state="completed",
        attempt_index=int(response.headers[ATTEMPT_HEADER]),
        result=response.content,
        result_encoding=unquote(response.headers.get(ENCODING_HEADER, "")),
        completed_at=int(response.headers.get(COMPLETED_HEADER, "0")),
    )


def _ended(info: ExecutionInfo) -> Ended | None:
    state = ENDS.get(info.public_state)
    if state is None:
        return None
    reason, category = info.failure_reason, info.failure_category
    if state == "cancelled":
        reason, category = info.cancellation_reason, "cancelled"
    return Ended(
        execution_id=info.execution_id,
        state=state,
        attempt_index=info.current_attempt_index,
        result_encoding=info.result_encoding or "",
        reason=reason or "",
        category=category or "",
        completed_at=info.completed_at,
    )


# ---- events


class _Feed:
    """A reader of the event log and its position; after a lost connection it reads on."""

    def __init__(self, rest: Rest, families: Collection[Family], scope: EventScope) -> None:
        if scope.partitions or scope.namespaces is not None:
            raise InvalidInput("scope: over HTTP by namespace and one tag only")
        self._rest = rest
        self._calls = Calls(http_transport(rest))
        tag = scope.instance_tag
        self._asked = EventQuery(
            families=",".join(sorted(families)),
            namespace=scope.namespace,
            tag=f"{tag[0]}={tag[1]}" if tag else "",
            limit=_PAGE,
        )

    async def begin(self, cursor: Cursor) -> AsyncGenerator[Event, None]:
        """Begin at the cursor, or at the position of this very call; a bad one is refused here."""
        return self._follow(await self._read(cursor, 0))

    async def _follow(self, page: Page[Event]) -> AsyncGenerator[Event, None]:
        failures = 0
        while True:
            for item in page.items:
                yield item
            try:
                page = await self._read(page.next_cursor, _WAIT_MS)
                failures = 0
            except FlowFabricError as fault:
                position = page.next_cursor
                if not _may_recover(fault, self._rest):
                    message = f"reading events: {fault}"
                    raise StreamDisconnected(message, cursor=position) from fault
                page = Page(items=[], next_cursor=position)
                failures += 1
                _log.warning("reading events failed, trying again: %s", fault)
                await asyncio.sleep(BACKOFF.pause_s(failures, random.random()))

    async def _read(self, cursor: Cursor, wait_ms: int) -> Page[Event]:
        return await self._calls.read_events(replace(self._asked, cursor=cursor, wait_ms=wait_ms))
