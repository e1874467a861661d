"""The submitter's port: everything a program asks that submits work and looks after it."""

from abc import abstractmethod
from collections.abc import Collection
from typing import Final

from flowfabric.core.plan import Family
from flowfabric.engine.events import Subscription
from flowfabric.errors import ExecutionNotFound
from flowfabric.operations.budgets import Budgets
from flowfabric.operations.declaration import AsyncCalls
from flowfabric.operations.ends import Ended
from flowfabric.operations.events import Cursor, EventScope
from flowfabric.operations.executions import ExecutionInfo, Executions, Submission
from flowfabric.operations.flows import Flows
from flowfabric.operations.lanes import Lanes
from flowfabric.operations.schedules import Schedules
from flowfabric.operations.signals import OpenWaitpoint, Signals
from flowfabric.operations.store import Store
from flowfabric.operations.streams import FramePage, Streams, Tail

_MOST_WAITPOINTS: Final = 1_000


class SubmitterPort(
    AsyncCalls, Executions, Signals, Streams, Flows, Budgets, Lanes, Schedules, Store
):
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
    async def tail(self, execution_id: str, attempt_index: int, asked: Tail) -> FramePage:
        """A page for a reader that stays."""

    # ---- signals

    async def waitpoints(self, execution_id: str) -> list[OpenWaitpoint]:
        """Those that take signals now."""
        return (await self.list_pending_waitpoints(execution_id, limit=_MOST_WAITPOINTS)).items

    # ---- events

    @abstractmethod
    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> Subscription: ...
