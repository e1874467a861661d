"""The submitter's port over HTTP."""

from collections.abc import Collection
from typing import Final

from flowfabric.backend.types import Summary
from flowfabric.client import shown
from flowfabric.client.ends import Ends
from flowfabric.client.events import Feed
from flowfabric.client.operations import over
from flowfabric.client.questions import attempt, get
from flowfabric.client.rest import Rest
from flowfabric.client.streams import tail_frames
from flowfabric.core.plan import Family
from flowfabric.engine.events import Cursor, EventScope, Subscription
from flowfabric.engine.streams import StreamPage, Tail
from flowfabric.errors import (
    NotFound,
)
from flowfabric.operations.ends import Ended
from flowfabric.operations.executions import Submission
from flowfabric.ports.submitter import SubmitterPort
from flowfabric.wire import streams

_PAGE: Final = 1_000


class HttpSubmitter(SubmitterPort):
    def __init__(self, rest: Rest, ends: Ends) -> None:
        super().__init__(over(rest))
        self._rest = rest
        self._ends = ends

    async def now(self) -> int:
        return (await self.describe()).now

    # ---- submitting

    async def call(self, submission: Submission) -> Ended:
        submitted = await self.submit(submission)
        ended = await self._ends.wait(submitted.execution_id, None)
        assert ended is not None
        return ended

    # ---- one execution

    async def wait_ended(self, execution_id: str, timeout_s: float | None = None) -> Ended | None:
        return await self._ends.wait(execution_id, timeout_s)

    async def tail(self, tail: Tail) -> StreamPage:
        return await tail_frames(self._rest, tail)

    async def summary(self, execution_id: str, attempt_index: int) -> Summary | None:
        try:
            question = get(attempt(execution_id, attempt_index, "summary"))
            return shown.summary_of(await self._rest.ask(question, streams.Summary))
        except NotFound:
            return None

    # ---- events

    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> Subscription:
        return await Feed(self._rest, families, scope).begin(cursor)
