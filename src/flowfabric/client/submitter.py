"""The submitter's port over HTTP."""

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from flowfabric.backend.types import Summary
from flowfabric.client import shown
from flowfabric.client.ends import Ends
from flowfabric.client.events import Feed
from flowfabric.client.operations import over
from flowfabric.client.questions import attempt, execution, get, post, put
from flowfabric.client.rest import Rest
from flowfabric.client.streams import tail_frames
from flowfabric.core.events import HistoryEntry
from flowfabric.core.plan import Family
from flowfabric.core.record import Attempt
from flowfabric.core.rules.operators import ReplayRequest
from flowfabric.core.tokens import WaitpointToken
from flowfabric.engine.deliveries import Delivered
from flowfabric.engine.events import Cursor, EventScope, Subscription
from flowfabric.engine.explanation_types import Explanation
from flowfabric.engine.signals import ApprovalRequest, SignalRequest
from flowfabric.engine.streams import StreamPage, Tail
from flowfabric.engine.waitpoints import OpenWaitpoint
from flowfabric.errors import ExecutionNotFound, NotFound
from flowfabric.operations.executions import Submission
from flowfabric.ports.submitter import SubmitterPort
from flowfabric.ports.worker import Ended
from flowfabric.wire import executions as wire
from flowfabric.wire import explanations, signals, streams
from flowfabric.wire.store import Capabilities

_PAGE: Final = 1_000


class HttpSubmitter(SubmitterPort):
    def __init__(self, rest: Rest, ends: Ends) -> None:
        super().__init__(over(rest))
        self._rest = rest
        self._ends = ends

    async def now(self) -> int:
        return (await self._rest.ask(get("/v1/capabilities"), Capabilities)).now

    # ---- submitting

    async def call(self, submission: Submission) -> Ended:
        submitted = await self.submit(submission)
        ended = await self._ends.wait(submitted.execution_id, None)
        assert ended is not None
        return ended

    # ---- one execution

    async def wait_ended(self, execution_id: str, timeout_s: float | None = None) -> Ended | None:
        return await self._ends.wait(execution_id, timeout_s)

    async def state(self, execution_id: str) -> str | None:
        try:
            return await self._rest.ask(get(execution(execution_id, "state")), str)
        except ExecutionNotFound:
            return None

    async def explain(self, execution_id: str) -> Explanation:
        question = get(execution(execution_id, "explain"))
        return shown.explanation_of(await self._rest.ask(question, explanations.Explanation))

    async def attempts(self, execution_id: str) -> tuple[Attempt, ...]:
        question = get(execution(execution_id, "attempts"))
        found = await self._rest.ask(question, wire.Attempts)
        return tuple(shown.attempt_of(one) for one in found.attempts)

    async def history(self, execution_id: str) -> tuple[HistoryEntry, ...]:
        entries: list[HistoryEntry] = []
        cursor: str | None = ""
        while cursor is not None:
            question = get(execution(execution_id, "history"), cursor=cursor, limit=_PAGE)
            page = await self._rest.ask(question, wire.History)
            entries += shown.history_of(page)
            cursor = page.next_cursor
        return tuple(entries)

    async def tail(self, tail: Tail) -> StreamPage:
        return await tail_frames(self._rest, tail)

    async def summary(self, execution_id: str, attempt_index: int) -> Summary | None:
        try:
            question = get(attempt(execution_id, attempt_index, "summary"))
            return shown.summary_of(await self._rest.ask(question, streams.Summary))
        except NotFound:
            return None

    async def replay(self, execution_id: str, request: ReplayRequest) -> str:
        body = wire.Replay(reason=request.reason, requested_by=request.requested_by)
        question = post(execution(execution_id, "replay"), body, is_safe=False)
        return (await self._rest.ask(question, wire.ReplayAnswer)).replayed.public_state

    async def set_tags(self, execution_id: str, tags: Mapping[str, str]) -> None:
        body = wire.SetTags(tags=dict(tags))
        await self._rest.fetch(put(execution(execution_id, "tags"), body))

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
