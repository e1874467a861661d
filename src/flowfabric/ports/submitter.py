"""The submitter's port: everything a program asks that submits work and looks after it."""

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Final

from flowfabric.backend.types import Summary
from flowfabric.core.plan import Family
from flowfabric.core.rules.operators import ReplayRequest
from flowfabric.engine.events import Cursor, EventScope, Subscription
from flowfabric.engine.flow_reads import FlowSnapshot, MemberPage
from flowfabric.engine.flow_replay import ReplayedMember
from flowfabric.engine.flow_types import FlowCancelled
from flowfabric.engine.graph_types import GraphSubmission, GraphSubmitted
from flowfabric.engine.streams import StreamPage, Tail
from flowfabric.errors import ExecutionNotFound
from flowfabric.operations.budgets import Budgets
from flowfabric.operations.declaration import AsyncCalls
from flowfabric.operations.executions import ExecutionInfo, Executions, Submission
from flowfabric.operations.signals import OpenWaitpoint, Signals
from flowfabric.ports.worker import Ended

_MOST_WAITPOINTS: Final = 1_000


class SubmitterPort(AsyncCalls, Executions, Signals, Budgets):
    @abstractmethod
    async def now(self) -> int:
        """The store's clock."""

    # ---- submitting

    @abstractmethod
    async def call(self, submission: Submission) -> Ended:
        """Submit, and wait for the end."""

    @abstractmethod
    async def submit_graph(self, graph: GraphSubmission) -> GraphSubmitted: ...

    # ---- one execution

    @abstractmethod
    async def wait_ended(self, execution_id: str, timeout_s: float | None = None) -> Ended | None:
        """How it ended, as soon as it has; None when the time is up before. Many may wait at once
        for the price of one listener."""

    async def is_known(self, execution_id: str) -> bool:
        try:
            await self.state(execution_id)
        except ExecutionNotFound:
            return False
        return True

    async def info(self, execution_id: str) -> ExecutionInfo | None:
        try:
            return await self.describe_execution(execution_id)
        except ExecutionNotFound:
            return None

    @abstractmethod
    async def tail(self, tail: Tail) -> StreamPage: ...

    @abstractmethod
    async def summary(self, execution_id: str, attempt_index: int) -> Summary | None: ...

    # ---- signals

    async def waitpoints(self, execution_id: str) -> list[OpenWaitpoint]:
        """Those that take signals now."""
        return (await self.list_pending_waitpoints(execution_id, limit=_MOST_WAITPOINTS)).items

    # ---- flows

    @abstractmethod
    async def flow(self, flow_id: str) -> FlowSnapshot | None: ...

    @abstractmethod
    async def members(self, flow_id: str, cursor: str = "", limit: int = 50) -> MemberPage: ...

    @abstractmethod
    async def cancel_flow(
        self, flow_id: str, reason: str, policy: str, *, wait: bool = False
    ) -> FlowCancelled: ...

    @abstractmethod
    async def replay_flow(
        self, flow_id: str, execution_ids: Sequence[str] | None, request: ReplayRequest
    ) -> list[ReplayedMember]: ...

    # ---- events

    @abstractmethod
    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> Subscription: ...
