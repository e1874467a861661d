"""The submitter's port over HTTP."""

from collections.abc import Collection

from flowfabric.client.ends import Ends
from flowfabric.client.events import Feed
from flowfabric.client.operations import over
from flowfabric.client.rest import Rest
from flowfabric.core.plan import Family
from flowfabric.engine.events import Subscription
from flowfabric.operations.ends import Ended
from flowfabric.operations.events import Cursor, EventScope
from flowfabric.operations.executions import Submission
from flowfabric.operations.streams import FramePage, Tail
from flowfabric.ports.submitter import SubmitterPort


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

    async def tail(self, execution_id: str, attempt_index: int, asked: Tail) -> FramePage:
        return await self.tail_stream(execution_id, attempt_index, asked)

    # ---- events

    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> Subscription:
        return await Feed(self._rest, families, scope).begin(cursor)
