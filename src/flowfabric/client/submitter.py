"""The submitter's port over HTTP."""

from collections.abc import Collection
from typing import Final

import msgspec

from flowfabric.backend.types import Summary
from flowfabric.client import shown
from flowfabric.client.ends import Ends
from flowfabric.client.events import Feed
from flowfabric.client.operations import over
from flowfabric.client.questions import attempt, execution, get, post
from flowfabric.client.rest import Rest
from flowfabric.client.streams import tail_frames
from flowfabric.core.plan import Family
from flowfabric.core.tokens import WaitpointToken
from flowfabric.engine.deliveries import Delivered
from flowfabric.engine.events import Cursor, EventScope, Subscription
from flowfabric.engine.signals import ApprovalRequest, SignalRequest
from flowfabric.engine.streams import StreamPage, Tail
from flowfabric.engine.waitpoints import OpenWaitpoint
from flowfabric.errors import (
    NotFound,
)
from flowfabric.operations.executions import Submission
from flowfabric.ports.submitter import SubmitterPort
from flowfabric.ports.worker import Ended
from flowfabric.wire import signals, streams

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

    # ---- signals

    async def signal(self, request: SignalRequest) -> Delivered:
        # A signal has an id: a repeat is known.
        members = {
            name: getattr(request, name)
            for name in request.__struct_fields__
            if name in signals.SendSignal.__struct_fields__
        }
        members["waitpoint_token"] = request.waitpoint_token.reveal()
        body = signals.SendSignal(**members)
        question = post(execution(request.execution_id, "signal"), body)
        return shown.delivered_of(await self._rest.ask(question, signals.SignalAnswer))

    async def approve(self, request: ApprovalRequest) -> Delivered:
        body = signals.Approve(
            signal_name=request.signal_name,
            source_identity=request.source_identity,
            payload=request.payload,
            idempotency_key=request.idempotency_key,
        )
        path = execution(request.execution_id, "waitpoints", request.waitpoint_id, "approve")
        question = post(path, body, is_safe=bool(request.idempotency_key))
        return shown.delivered_of(await self._rest.ask(question, signals.SignalAnswer))

    async def waitpoints(self, execution_id: str) -> tuple[OpenWaitpoint, ...]:
        question = get(execution(execution_id, "pending-waitpoints"), limit=_PAGE)
        found = await self._rest.ask(question, list[signals.OpenWaitpoint])
        return tuple(msgspec.convert(one, OpenWaitpoint, from_attributes=True) for one in found)

    async def waitpoint_token(self, execution_id: str, waitpoint_id: str) -> WaitpointToken | None:
        try:
            question = get(execution(execution_id, "waitpoints", waitpoint_id, "token"))
            return WaitpointToken((await self._rest.ask(question, signals.TokenAnswer)).token)
        except NotFound:
            return None

    # ---- events

    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> Subscription:
        return await Feed(self._rest, families, scope).begin(cursor)
