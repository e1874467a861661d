"""The submitter's port: everything a program asks that submits work and looks after it."""

from abc import abstractmethod
from collections.abc import Collection

from flowfabric.backend.types import Summary
from flowfabric.core.plan import Family
from flowfabric.core.tokens import WaitpointToken
from flowfabric.engine.deliveries import Delivered
from flowfabric.engine.events import Cursor, EventScope, Subscription
from flowfabric.engine.signals import ApprovalRequest, SignalRequest
from flowfabric.engine.streams import StreamPage, Tail
from flowfabric.engine.waitpoints import OpenWaitpoint
from flowfabric.errors import ExecutionNotFound
from flowfabric.operations.budgets import Budgets
from flowfabric.operations.declaration import AsyncCalls
from flowfabric.operations.executions import ExecutionInfo, Executions, Submission
from flowfabric.operations.flows import Flows
from flowfabric.operations.lanes import Lanes
from flowfabric.operations.schedules import Schedules
from flowfabric.operations.store import Store
from flowfabric.ports.worker import Ended


class SubmitterPort(AsyncCalls, Executions, Flows, Budgets, Lanes, Schedules, Store):
    @abstractmethod
    async def now(self) -> int:
        """The store's clock."""

    # ---- submitting

    @abstractmethod
    async def call(self, submission: Submission) -> Ended:
        """Submit, and wait for the end."""

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

    @abstractmethod
    async def signal(self, request: SignalRequest) -> Delivered: ...

    @abstractmethod
    async def approve(self, request: ApprovalRequest) -> Delivered:
        """The decision of a person who holds no token."""

    @abstractmethod
    async def waitpoints(self, execution_id: str) -> tuple[OpenWaitpoint, ...]:
        """Those that take signals now."""

    @abstractmethod
    async def waitpoint_token(
        self, execution_id: str, waitpoint_id: str
    ) -> WaitpointToken | None: ...

    # ---- events

    @abstractmethod
    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> Subscription: ...
