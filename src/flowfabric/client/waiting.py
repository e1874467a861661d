"""Waiting through a server: for ends, for output, for events."""

from collections.abc import AsyncGenerator, Collection

from flowfabric.client.ends import Ends
from flowfabric.client.events import Feed
from flowfabric.client.operations import http_transport
from flowfabric.client.requests import execution, get
from flowfabric.client.rest import Rest
from flowfabric.core.plan import Family
from flowfabric.errors import NotFound
from flowfabric.operations.ends import Ended
from flowfabric.operations.events import Cursor, Event, EventScope
from flowfabric.operations.executions import Submission
from flowfabric.operations.nouns import Calls
from flowfabric.operations.streams import FramePage, Tail


class HttpWaiter:
    def __init__(self, rest: Rest, ends: Ends) -> None:
        self._rest = rest
        self._ends = ends
        self._calls = Calls(http_transport(rest))

    async def call(self, submission: Submission) -> Ended:
        submitted = await self._calls.submit(submission)
        ended = await self._ends.wait(submitted.execution_id, None)
        assert ended is not None
        return ended

    async def wait_ended(self, execution_id: str, timeout_s: float | None) -> Ended | None:
        return await self._ends.wait(execution_id, timeout_s)

    async def tail(self, execution_id: str, attempt_index: int, asked: Tail) -> FramePage:
        return await self._calls.tail_stream(execution_id, attempt_index, asked)

    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> AsyncGenerator[Event, None]:
        return await Feed(self._rest, families, scope).begin(cursor)

    async def result(self, execution_id: str) -> bytes | None:
        try:
            return (await self._rest.fetch(get(execution(execution_id, "result")))).content
        except NotFound:
            return None

    async def input(self, execution_id: str) -> bytes:
        return (await self._rest.fetch(get(execution(execution_id, "input")))).content
