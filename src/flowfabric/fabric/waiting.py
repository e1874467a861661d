"""Waiting in this process: for ends, for output, for events."""

from collections.abc import AsyncGenerator, Collection
from typing import Final

from flowfabric.backend.types import With
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.plan import Family
from flowfabric.engine import Engine
from flowfabric.engine.executions.waits import WITH_RESULT, end_of
from flowfabric.operations.ends import Ended
from flowfabric.operations.events import Cursor, Event, EventScope
from flowfabric.operations.executions import Submission
from flowfabric.operations.streams import FramePage, Tail

_WITH_INPUT: Final = frozenset[With]({"input"})


class EngineWaiter:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def call(self, submission: Submission) -> Ended:
        ended = end_of(await self._engine.waits.call(submission, WITH_RESULT))
        assert ended is not None
        return ended

    async def wait_ended(self, execution_id: str, timeout_s: float | None) -> Ended | None:
        parse_execution_id(execution_id, self._engine.deps.counts)
        return end_of(await self._engine.waits.until(execution_id, timeout_s, WITH_RESULT))

    async def tail(self, execution_id: str, attempt_index: int, asked: Tail) -> FramePage:
        # The pool of tails keeps a server open to all its clients; here is only one.
        return await self._engine.streams.follow_stream(execution_id, attempt_index, asked)

    async def events(
        self, families: Collection[Family], scope: EventScope, cursor: Cursor
    ) -> AsyncGenerator[Event, None]:
        return await self._engine.events.subscribe(families, scope, cursor)

    async def result(self, execution_id: str) -> bytes | None:
        return await self._engine.reads.get_execution_result(execution_id)

    async def input(self, execution_id: str) -> bytes:
        parse_execution_id(execution_id, self._engine.deps.counts)
        return (await self._engine.deps.seen(execution_id, _WITH_INPUT)).input or b""
