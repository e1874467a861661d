"""The submitter's port: everything a program asks that submits work and looks after it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from flowfabric.backend.types import Summary
from flowfabric.core.events import HistoryEntry
from flowfabric.core.plan import Family
from flowfabric.core.record import Attempt
from flowfabric.core.rules.operators import ReplayRequest
from flowfabric.core.tokens import WaitpointToken
from flowfabric.engine.budget_types import BudgetCreated, BudgetStatus, NewBudget
from flowfabric.engine.deliveries import Delivered
from flowfabric.engine.events import Cursor, EventScope, Subscription
from flowfabric.engine.executions import Submission, Submitted
from flowfabric.engine.explanation_types import Explanation
from flowfabric.engine.flow_reads import FlowSnapshot, MemberPage
from flowfabric.engine.flow_replay import ReplayedMember
from flowfabric.engine.flow_types import FlowCancelled
from flowfabric.engine.graph_types import GraphSubmission, GraphSubmitted
from flowfabric.engine.quotas import NewQuota, QuotaCreated
from flowfabric.engine.signals import ApprovalRequest, SignalRequest
from flowfabric.engine.snapshots import ExecutionInfo
from flowfabric.engine.streams import StreamPage, Tail
from flowfabric.engine.waitpoints import OpenWaitpoint
from flowfabric.errors import FlowFabricError
from flowfabric.ports.worker import Ended


class SubmitterPort(Protocol):
    async def now(self) -> int:
        """The store's clock."""

    # ---- submitting

    async def submit(self, submission: Submission) -> Submitted: ...

    async def submit_many(
        self, submissions: Sequence[Submission]
    ) -> list[Submitted | FlowFabricError]:
        """Each by itself, in one call; answers in order."""

    async def call(self, submission: Submission) -> Ended:
        """Submit, and wait for the end."""

    async def submit_graph(self, graph: GraphSubmission) -> GraphSubmitted: ...

    # ---- one execution

    async def wait_ended(self, execution_id: str, timeout_s: float | None = None) -> Ended | None:
        """How it ended, as soon as it has; None when the time is up before. Many may wait at once
        for the price of one listener."""

    async def state(self, execution_id: str) -> str | None: ...

    async def info(self, execution_id: str) -> ExecutionInfo | None: ...

    async def explain(self, execution_id: str) -> Explanation: ...

    async def attempts(self, execution_id: str) -> tuple[Attempt, ...]: ...

    async def history(self, execution_id: str) -> tuple[HistoryEntry, ...]: ...

    async def tail(self, tail: Tail) -> StreamPage: ...

    async def summary(self, execution_id: str, attempt_index: int) -> Summary | None: ...

    async def cancel(self, execution_id: str, reason: str) -> None: ...

    async def replay(self, execution_id: str, request: ReplayRequest) -> str:
        """The public state it is in now."""

    async def set_tags(self, execution_id: str, tags: Mapping[str, str]) -> None: ...

    # ---- signals

    async def signal(self, request: SignalRequest) -> Delivered: ...

    async def approve(self, request: ApprovalRequest) -> Delivered:
        """The decision of a person who holds no token."""

    async def waitpoints(self, execution_id: str) -> tuple[OpenWaitpoint, ...]:
        """Those that take signals now."""

    async def waitpoint_token(
        self, execution_id: str, waitpoint_id: str
    ) -> WaitpointToken | None: ...

    # ---- flows

    async def flow(self, flow_id: str) -> FlowSnapshot | None: ...

    async def members(self, flow_id: str, cursor: str = "", limit: int = 50) -> MemberPage: ...

    async def cancel_flow(
        self, flow_id: str, reason: str, policy: str, *, wait: bool = False
    ) -> FlowCancelled: ...

    async def replay_flow(
        self, flow_id: str, execution_ids: Sequence[str] | None, request: ReplayRequest
    ) -> list[ReplayedMember]: ...

    # ---- limits

    async def create_budget(self, new: NewBudget) -> BudgetCreated: ...

    async def budget(self, budget_id: str) -> BudgetStatus: ...

    async def create_quota(self, new: NewQuota) -> QuotaCreated: ...

    # ---- events

    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> Subscription: ...
