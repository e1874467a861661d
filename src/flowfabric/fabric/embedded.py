"""The submitter's port over an engine in this process."""

from collections.abc import Collection, Sequence

from flowfabric.backend.types import Summary
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.plan import Family
from flowfabric.core.rules.operators import ReplayRequest
from flowfabric.engine import Engine
from flowfabric.engine.events import Cursor, EventScope, Subscription
from flowfabric.engine.flow_reads import FlowSnapshot, MemberPage
from flowfabric.engine.flow_replay import ReplayedMember
from flowfabric.engine.flow_types import FlowCancelled
from flowfabric.engine.graph_types import GraphSubmission, GraphSubmitted
from flowfabric.engine.streams import StreamPage, Tail
from flowfabric.operations.executions import Submission
from flowfabric.ports.ends import WITH_RESULT, end_of
from flowfabric.ports.submitter import SubmitterPort
from flowfabric.ports.worker import Ended


class EmbeddedSubmitter(SubmitterPort):
    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.use_case)
        self._engine = engine

    async def now(self) -> int:
        return await self._engine.deps.store.backend.now()

    async def call(self, submission: Submission) -> Ended:
        ended = end_of(await self._engine.waits.call(submission, WITH_RESULT))
        assert ended is not None
        return ended

    async def submit_graph(self, graph: GraphSubmission) -> GraphSubmitted:
        return await self._engine.graphs.submit_graph(graph)

    async def wait_ended(self, execution_id: str, timeout_s: float | None = None) -> Ended | None:
        parse_execution_id(execution_id, self._engine.deps.counts)
        return end_of(await self._engine.waits.until(execution_id, timeout_s, WITH_RESULT))

    async def tail(self, tail: Tail) -> StreamPage:
        # The pool of tails keeps a server open to all its clients; here is only one.
        return await self._engine.streams.follow_stream(tail)

    async def summary(self, execution_id: str, attempt_index: int) -> Summary | None:
        return await self._engine.streams.read_summary(execution_id, attempt_index)

    async def flow(self, flow_id: str) -> FlowSnapshot | None:
        return await self._engine.flow_reads.describe_flow(flow_id)

    async def members(self, flow_id: str, cursor: str = "", limit: int = 50) -> MemberPage:
        return await self._engine.flow_reads.list_members(flow_id, cursor, limit)

    async def cancel_flow(
        self, flow_id: str, reason: str, policy: str, *, wait: bool = False
    ) -> FlowCancelled:
        return await self._engine.flow_cancels.cancel_flow(flow_id, policy, reason, wait=wait)

    async def replay_flow(
        self, flow_id: str, execution_ids: Sequence[str] | None, request: ReplayRequest
    ) -> list[ReplayedMember]:
        return await self._engine.flow_replays.replay_subgraph(flow_id, execution_ids, request)

    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> Subscription:
        return await self._engine.events.subscribe(families, scope, cursor)
