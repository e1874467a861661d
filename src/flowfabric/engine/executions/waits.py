"""Waiting for executions to end."""

import asyncio
from contextlib import closing
from typing import Final

from flowfabric.backend.base import TopicSubscription, end_topic
from flowfabric.backend.types import Duplicate, Seen, With
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.states import FINAL
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.executions.snapshots import stored_public_state
from flowfabric.engine.executions.submit import Executions
from flowfabric.operations.declaration import implements
from flowfabric.operations.execution_queries import ENDS, Ended, ExecutionQueries
from flowfabric.operations.executions import Submission

MOST_WAIT_MS: Final = 30_000
WITH_RESULT: Final = frozenset[With]({"result"})
# How often a wait looks without a notification.
SAFETY_NET_S: Final = 5.0
_BEGUN_S: Final = 1.0
# An end could be missed only while listening begins, so a new execution is looked at this late.
_FIRST_LOOK_S: Final = 0.1


class Waits:
    """Each waits for the notification of an end, whichever process brought it about."""

    def __init__(self, deps: Deps, executions: Executions) -> None:
        self._deps = deps
        self._executions = executions

    async def call(self, submission: Submission, include: frozenset[With] = frozenset()) -> Seen:
        """Create an execution and wait for its end. It subscribes before the execution
        exists, so that no end is missed and no read is needed before one."""
        new = await self._executions.prepare(submission)
        execution_id = new.execution_id
        subscription = self._subscribe(execution_id)
        try:
            created = await self._deps.store.create(new)
            if isinstance(created, Duplicate):
                await self._executions.compare(new, created)
            submitted = self._executions.submitted(new, created)
            if submitted.is_new:
                await subscription.wait_before_read(_FIRST_LOOK_S)
                return await self._ended(execution_id, None, include, subscription)
        finally:
            subscription.close()
        return await self.until(submitted.execution_id, None, include)

    @implements(ExecutionQueries.state)
    async def until_final(self, execution_id: str, wait_ms: int = 0) -> str:
        """The public state, as soon as it is a final one or else when the time is up."""
        parse_execution_id(execution_id, self._deps.counts)
        whole(wait_ms, "wait_ms", 0, MOST_WAIT_MS)
        seen = await self.until(execution_id, wait_ms / 1000)
        return stored_public_state(seen.record)

    async def until(
        self, execution_id: str, seconds: float | None, include: frozenset[With] = frozenset()
    ) -> Seen:
        """The execution as soon as it has ended, or else as it is when the time is up."""
        if seconds == 0:
            return await self._deps.seen(execution_id, include)
        end = None if seconds is None else asyncio.get_running_loop().time() + seconds
        with closing(self._subscribe(execution_id)) as subscription:
            await subscription.wait_subscribed(_BEGUN_S)
            return await self._ended(execution_id, end, include, subscription)

    def _subscribe(self, execution_id: str) -> TopicSubscription:
        return self._deps.store.backend.notifier().subscribe(end_topic(execution_id))

    async def _ended(
        self,
        execution_id: str,
        end: float | None,
        include: frozenset[With],
        subscription: TopicSubscription,
    ) -> Seen:
        loop = asyncio.get_running_loop()
        while True:
            seen = await self._deps.seen(execution_id, include)
            left = SAFETY_NET_S if end is None else end - loop.time()
            if seen.record.state in FINAL or left <= 0:
                return seen
            await subscription.wait(min(left, SAFETY_NET_S))


def end_of(seen: Seen | None) -> Ended | None:
    """None while the execution is live, or unknown."""
    state = ENDS.get(seen.record.state) if seen else None
    if seen is None or state is None:
        return None
    record = seen.record
    reason, category = record.failure_reason, record.failure_category
    if state == "cancelled":
        reason, category = record.cancellation_reason, "cancelled"
    return Ended(
        execution_id=record.execution_id,
        state=state,
        attempt_index=record.attempt_index,
        result=seen.result,
        result_encoding=record.result_encoding,
        reason=reason,
        category=category,
        completed_at=record.completed_at,
    )
