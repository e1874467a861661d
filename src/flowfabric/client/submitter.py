"""The submitter's port over HTTP."""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from flowfabric.backend.types import Summary
from flowfabric.client import shown
from flowfabric.client.ends import Ends
from flowfabric.client.events import Feed
from flowfabric.client.operations import over
from flowfabric.client.questions import attempt, flow, get, post
from flowfabric.client.rest import Rest
from flowfabric.client.streams import tail_frames
from flowfabric.client.submissions import flow_of, graph_of
from flowfabric.core.plan import Family
from flowfabric.core.rules.operators import ReplayRequest
from flowfabric.engine.events import Cursor, EventScope, Subscription
from flowfabric.engine.flow_reads import FlowSnapshot, MemberPage
from flowfabric.engine.flow_replay import ReplayedMember
from flowfabric.engine.flow_types import FlowCancelled
from flowfabric.engine.graph_types import GraphSubmission, GraphSubmitted
from flowfabric.engine.streams import StreamPage, Tail
from flowfabric.errors import (
    FlowNotFound,
    NotFound,
)
from flowfabric.operations.executions import Submission
from flowfabric.ports.submitter import SubmitterPort
from flowfabric.ports.worker import Ended
from flowfabric.wire import flows, streams
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

    async def submit_graph(self, graph: GraphSubmission) -> GraphSubmitted:
        is_safe = bool(graph.idempotency_key or graph.flow_id)
        question = post("/v1/flows:submit", flow_of(graph), is_safe=is_safe)
        return graph_of(await self._rest.ask(question, flows.SubmitAnswer))

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

    # ---- flows

    async def flow(self, flow_id: str) -> FlowSnapshot | None:
        try:
            return shown.flow_of(await self._rest.ask(get(flow(flow_id)), flows.Flow))
        except FlowNotFound:
            return None

    async def members(self, flow_id: str, cursor: str = "", limit: int = 50) -> MemberPage:
        question = get(flow(flow_id, "members"), cursor=cursor, limit=limit)
        return shown.members_of(await self._rest.ask(question, flows.Members))

    async def cancel_flow(
        self, flow_id: str, reason: str, policy: str, *, wait: bool = False
    ) -> FlowCancelled:
        body = flows.CancelFlow(reason=reason, cancellation_policy=policy)
        question = post(flow(flow_id, "cancel"), body)
        if wait:
            question = msgspec.structs.replace(question, query={"wait": "true"})
        return shown.cancelled_of(await self._rest.ask(question, flows.CancelFlowAnswer))

    async def replay_flow(
        self, flow_id: str, execution_ids: Sequence[str] | None, request: ReplayRequest
    ) -> list[ReplayedMember]:
        body = flows.ReplayFlow(
            execution_ids=None if execution_ids is None else list(execution_ids),
            reason=request.reason,
            requested_by=request.requested_by,
        )
        question = post(flow(flow_id, "replay"), body, is_safe=False)
        return shown.replayed_of(await self._rest.ask(question, flows.ReplayFlowAnswer))

    # ---- events

    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> Subscription:
        return await Feed(self._rest, families, scope).begin(cursor)
