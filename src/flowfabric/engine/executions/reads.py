"""Reads: what is known of one execution. Nothing here changes anything."""

from typing import Final

from flowfabric.backend.types import Seen, With
from flowfabric.core.events import HistoryEntry
from flowfabric.core.facets import Scene
from flowfabric.core.ids import parse_execution_id
from flowfabric.core.pages import fitting
from flowfabric.core.record import Record
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.executions.children import with_children
from flowfabric.engine.executions.listings import MOST_LISTED, Listings
from flowfabric.engine.executions.mailbox import with_mailbox
from flowfabric.engine.executions.snapshots import (
    attempts_of,
    info_of,
    stored_flow_id,
    stored_public_state,
)
from flowfabric.engine.lanes import Lanes
from flowfabric.engine.workers import Workers
from flowfabric.errors import InvalidInput
from flowfabric.operations.declaration import implements
from flowfabric.operations.execution_queries import (
    Attempts,
    ExecutionContext,
    ExecutionInfo,
    ExecutionQueries,
)
from flowfabric.operations.types import Page

_NOTHING: Final = frozenset[With]()
_INPUT: Final = frozenset[With]({"input"})
_RESULT: Final = frozenset[With]({"result"})
_ATTEMPTS: Final = frozenset[With]({"attempts"})
_HISTORY: Final = frozenset[With]({"history"})
_MOST_DIGITS: Final = 10


class Reads(Listings):
    """One execution at a time here, many at a time in `Listings`."""

    def __init__(self, deps: Deps, lanes: Lanes, workers: Workers) -> None:
        super().__init__(deps, lanes)
        self._workers = workers

    @implements(ExecutionQueries.describe_execution)
    async def describe_execution(self, execution_id: str) -> ExecutionInfo:
        seen = await self._needed(execution_id, _NOTHING)
        info = info_of(seen.record, await self._scene(seen))
        if info.mail_count:
            info = await with_mailbox(self._deps, info)
        return await with_children(self._deps, info)

    async def read_execution_state(self, execution_id: str) -> str | None:
        """The public state; None when there is no such execution."""
        seen = await self._seen(execution_id)
        return stored_public_state(seen.record) if seen else None

    async def read_current_attempt_index(self, execution_id: str) -> int:
        """The current or last attempt; 0 before the first and without an execution."""
        seen = await self._seen(execution_id)
        return seen.record.attempt_index if seen else 0

    async def read_total_attempt_count(self, execution_id: str) -> int:
        """The index the next attempt will have."""
        seen = await self._seen(execution_id)
        return seen.record.attempt_count if seen else 0

    async def resolve_execution_flow_id(self, execution_id: str) -> str | None:
        seen = await self._seen(execution_id)
        return stored_flow_id(seen.record) if seen else None

    async def get_execution_result(self, execution_id: str) -> bytes | None:
        """The result as it was completed with; None without one. An empty one is b""."""
        seen = await self._seen(execution_id, _RESULT)
        return seen.result if seen else None

    async def read_execution_context(self, execution_id: str) -> ExecutionContext:
        """Input, kind and tags, for whoever has just claimed it."""
        seen = await self._seen(execution_id, _INPUT)
        if seen is None:
            raise InvalidInput(f"execution_id: there is no execution {execution_id}")
        return ExecutionContext(seen.input or b"", seen.record.kind, seen.record.tags)

    @implements(ExecutionQueries.attempts)
    async def attempts(self, execution_id: str) -> Attempts:
        """Every attempt by index, the open one last."""
        seen = await self._needed(execution_id, _ATTEMPTS)
        return Attempts(attempts_of(seen.record, seen.attempts))

    @implements(ExecutionQueries.history)
    async def history(
        self, execution_id: str, cursor: str = "", limit: int = MOST_LISTED
    ) -> Page[HistoryEntry]:
        """The last lease events, newest last; the cursor counts those before it."""
        start, end = _slice(cursor, limit)
        found = (await self._needed(execution_id, _HISTORY)).history
        page = fitting(found[start:end])
        end = start + len(page)
        return Page(items=page, next_cursor=str(end) if len(found) > end else "")

    async def _seen(self, execution_id: str, include: frozenset[With] = _NOTHING) -> Seen | None:
        parse_execution_id(execution_id, self._deps.counts)
        return await self._deps.store.read(execution_id, include)

    async def _needed(self, execution_id: str, include: frozenset[With]) -> Seen:
        return await self._deps.seen(parse_execution_id(execution_id, self._deps.counts), include)

    async def _scene(self, seen: Seen) -> Scene | None:
        """What else keeps a waiting execution from running; no other state asks for it."""
        record = seen.record
        if record.state != "waiting":
            return None
        return Scene(await self._lane_state(record), await self._is_served(record, seen.now))

    async def _lane_state(self, record: Record) -> str:
        known = self._lanes.known((record.namespace, record.lane))
        lane = known.lane if known else await self._lanes.look_up(record.namespace, record.lane)
        return lane.state

    async def _is_served(self, record: Record, now: int) -> bool:
        required = record.required_capabilities
        return not required or await self._workers.serves(
            record.namespace, record.lane, required, now
        )


def _slice(cursor: str, limit: int) -> tuple[int, int]:
    if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= _MOST_DIGITS):
        raise InvalidInput("cursor: not one of this list")
    start = int(cursor or "0")
    return start, start + whole(limit, "limit", 1, MOST_LISTED)
