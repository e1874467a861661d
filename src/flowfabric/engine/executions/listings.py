"""Listings: many executions at a time, in the order of the view that shows them."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import msgspec

from flowfabric.backend.types import Filter, ListRequest, Order, Page
from flowfabric.core.checks import is_parked
from flowfabric.core.documents import SUSPENSION
from flowfabric.core.events import NONDETERMINISM
from flowfabric.core.facets import facets
from flowfabric.core.ids import check_lane, check_namespace, parse_execution_id
from flowfabric.core.record import Record
from flowfabric.core.states import BLOCK_REASONS, public_state
from flowfabric.core.suspensions import suspension_in
from flowfabric.core.views import LAST, sort_of
from flowfabric.engine.checking import whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.executions.search import ORDERS, check_search, filter_of, found_of, is_found
from flowfabric.engine.executions.snapshots import (
    expired_lease_of,
    stored_id,
    summary_of,
)
from flowfabric.engine.lanes import Lanes
from flowfabric.errors import InvalidInput
from flowfabric.operations import lanes as declared_lanes
from flowfabric.operations import types as operations
from flowfabric.operations.declaration import implements
from flowfabric.operations.execution_queries import (
    Counts,
    ExecutionQueries,
    ExecutionSummary,
    FoundExecution,
    Search,
    SuspendedExecution,
)
from flowfabric.operations.lanes import ExpiredLease

PAGE: Final = 50
MOST_LISTED: Final = 1_000
MOST_EXPIRED: Final = 10_000

# Of an instant in a cursor.
_MOST_DIGITS: Final = 16

Place = tuple[int, str]

# What each name of a lane's listing stands for. Reserved executions are `waiting` like others, and
# a lost lease is publicly `active`.
_VIEWS: Final[dict[str, Filter]] = {
    "eligible": Filter(state="waiting"),
    "delayed": Filter(state="delayed"),
    "active": Filter(public_state="active"),
    "suspended": Filter(state="suspended"),
    "terminal": Filter(state="terminal"),
    **{f"blocked:{why}": Filter(state="blocked", reason=why) for why in sorted(BLOCK_REASONS)},
}


class Listings:
    def __init__(self, deps: Deps, lanes: Lanes) -> None:
        self._deps = deps
        self._lanes = lanes

    async def search(
        self,
        wanted: Filter,
        order: Order = "created_newest",
        cursor: str = "",
        limit: int = PAGE,
    ) -> Page:
        """Executions that match, across partitions. A page may be short and yet have a next one."""
        check_search(wanted, order, self._deps.counts)
        whole(limit, "limit", 1, MOST_LISTED)
        return await self._search(wanted, order, cursor, limit)

    @implements(ExecutionQueries.search)
    async def find(
        self, query: Search, visible: frozenset[str] | None = None
    ) -> operations.Page[FoundExecution]:
        wanted = filter_of(query, visible)
        page = await self.search(wanted, ORDERS[query.order], query.cursor, query.limit)
        found = [found_of(one) for one in page.records if is_found(one, query, visible)]
        return operations.Page(items=found, next_cursor=page.next_cursor)

    @implements(ExecutionQueries.list_executions)
    async def list_executions(
        self,
        partition: int,
        cursor: str = "",
        limit: int = PAGE,
        visible: frozenset[str] | None = None,
    ) -> operations.Page[str]:
        """Ids of one partition in byte order, strictly behind the cursor, which is an id; those of
        the visible namespaces. Then a page may be short and yet have a next one."""
        whole(partition, "partition", 0, self._deps.counts.flow - 1)
        limit = min(whole(limit, "limit"), MOST_LISTED)
        if cursor:
            _check_cursor(cursor)
        if limit == 0:
            return operations.Page(items=[])
        rows = await self._first(Filter(partition=partition), "id", limit + 1, cursor)
        page = rows[:limit]
        ids = [
            stored_id(record.execution_id)
            for record in page
            if visible is None or record.namespace in visible
        ]
        more = len(rows) > limit
        return operations.Page(items=ids, next_cursor=page[-1].execution_id if more else "")

    @implements(ExecutionQueries.list_lane)
    async def list_lane(
        self,
        lane: str,
        state: str,
        namespace: str = "default",
        cursor: str = "",
        limit: int = PAGE,
    ) -> operations.Page[ExecutionSummary]:
        """One view of a lane in its own order. A page may be short and yet have a next one."""
        check_namespace(namespace)
        check_lane(lane)
        if state not in _VIEWS:
            names = "eligible, delayed, active, suspended, terminal, blocked:<reason>"
            raise InvalidInput(f"state: expected one of {names}, got {state!r}")
        limit = min(whole(limit, "limit"), MOST_LISTED)
        if limit == 0:
            return operations.Page(items=[])
        wanted = msgspec.structs.replace(_VIEWS[state], namespace=namespace, lane=lane)
        page = await self._search(wanted, "view", cursor, limit)
        lines = [summary_of(record) for record in page.records]
        return operations.Page(items=lines, next_cursor=page.next_cursor)

    @implements(ExecutionQueries.list_suspended)
    async def list_suspended(
        self,
        partition: int,
        cursor: str = "",
        limit: int = PAGE,
        visible: frozenset[str] | None = None,
    ) -> operations.Page[SuspendedExecution]:
        whole(partition, "partition", 0, self._deps.counts.flow - 1)
        limit = min(whole(limit, "limit"), MOST_LISTED)
        after = _place_of(cursor)
        if limit == 0:
            return operations.Page(items=[])
        walk = self._walk(Filter(partition=partition, state="suspended"), "id")
        listed = (one async for one in walk if visible is None or one.namespace in visible)
        rows = await _least(listed, _timeout_place, after, limit + 1)
        page = rows[:limit]
        codes = await self._reason_codes(page)
        lines = [suspended_of(record, codes.get(record.suspension_id, "")) for record in page]
        next_cursor = f"{sort_of(page[-1])}:{page[-1].execution_id}" if len(rows) > limit else ""
        return operations.Page(items=lines, next_cursor=next_cursor)

    async def _reason_codes(self, suspended: Sequence[Record]) -> dict[str, str]:
        """What each suspension says it waits for, by its id."""
        ids = [record.execution_id for record in suspended]
        wanted = dict.fromkeys(ids, (SUSPENSION,))
        found = await self._deps.store.backend.read(ids, frozenset(), wanted)
        kept = [suspension_in(seen.documents) for seen in found if seen is not None]
        return {one.suspension_id: one.reason_code for one in kept if one is not None}

    @implements(declared_lanes.Lanes.list_expired_leases)
    async def list_expired_leases(
        self,
        namespace: str = "default",
        as_of: int | None = None,
        cursor: str = "",
        limit: int = MOST_LISTED,
        visible: frozenset[str] | None = None,
    ) -> operations.Page[ExpiredLease]:
        whole(limit, "limit", 1, MOST_EXPIRED)
        if namespace:
            check_namespace(namespace)
        after = _place_of(cursor)
        if as_of is None:
            as_of = await self._deps.store.backend.now()
        ended = self._ended_leases(namespace, whole(as_of, "as_of"), visible)
        rows = await _least(ended, _lease_place, after, limit)
        leases = [lease for record in rows if (lease := expired_lease_of(record))]
        last = rows[-1] if len(rows) == limit else None
        next_cursor = f"{last.lease_until}:{last.execution_id}" if last else ""
        return operations.Page(items=leases, next_cursor=next_cursor)

    @implements(ExecutionQueries.count)
    async def count_executions(self, lane: str = "", namespace: str = "default") -> Counts:
        return Counts(await self.count(namespace, lane))

    async def count(self, namespace: str, lane: str = "") -> dict[str, int]:
        """How many executions a lane, or the whole namespace, has in each public state."""
        check_namespace(namespace)
        if lane:
            check_lane(lane)
        return public_counts(await self._deps.store.backend.count(namespace, lane))

    async def _ended_leases(
        self, namespace: str, as_of: int, visible: frozenset[str] | None
    ) -> AsyncIterator[Record]:
        names = [namespace] if namespace or visible is None else sorted(visible)
        for name in names:
            async for record in self._ended_in(name, as_of):
                yield record

    async def _ended_in(self, namespace: str, as_of: int) -> AsyncIterator[Record]:
        """Of all namespaces when none is named."""
        async for own, lane in self._lanes.every(namespace):
            lost = Filter(namespace=own, lane=lane, state="lost")
            async for record in self._walk(lost, "view"):
                if record.lease_until <= as_of and expired_lease_of(record):
                    yield record
        # An active record's timer is never later than the end of its lease.
        async for record in self._walk(Filter(namespace=namespace, state="active"), "due"):
            if record.due_at > as_of:
                return
            if record.lease_until <= as_of and expired_lease_of(record):
                yield record

    async def _walk(self, wanted: Filter, order: Order) -> AsyncIterator[Record]:
        cursor = ""
        while True:
            page = await self._search(wanted, order, cursor, MOST_LISTED)
            for record in page.records:
                yield record
            cursor = page.next_cursor
            if not cursor:
                return

    async def _first(
        self, wanted: Filter, order: Order, most: int, cursor: str = ""
    ) -> list[Record]:
        rows: list[Record] = []
        while len(rows) < most:
            page = await self._search(wanted, order, cursor, min(most - len(rows), MOST_LISTED))
            rows += page.records
            cursor = page.next_cursor
            if not cursor:
                break
        return rows

    async def _search(self, wanted: Filter, order: Order, cursor: str, limit: int) -> Page:
        request = ListRequest(filter=wanted, order=order, cursor=cursor, limit=limit)
        return await self._deps.store.backend.search(request)


def public_counts(counts: dict[str, int]) -> dict[str, int]:
    """Counts per bucket of a lane folded into the states users know."""
    folded: dict[str, int] = {}
    for bucket, n in counts.items():
        state, _, reason = bucket.partition(":")
        public = public_state(state, reason)
        folded[public] = folded.get(public, 0) + n
    return folded


def suspended_of(record: Record, reason_code: str = "") -> SuspendedExecution:
    if is_parked(record):
        # What it waited for before is over.
        reason_code = NONDETERMINISM
    return SuspendedExecution(
        execution_id=record.execution_id,
        suspended_at_ms=record.moved_at,
        timeout_at_ms=record.wake_at or LAST,
        reason=reason_code or facets(record).blocking_reason,
    )


def _timeout_place(record: Record) -> Place:
    return sort_of(record), record.execution_id


def _check_cursor(cursor: str) -> None:
    try:
        parse_execution_id(cursor)
    except InvalidInput as fault:
        raise InvalidInput(f"invalid cursor: {fault.detail}") from fault


def _check_place(place: Place | None, field: str) -> None:
    if place is not None:
        instant, execution_id = place
        whole(instant, field)
        parse_execution_id(execution_id)


def _place_of(cursor: str) -> Place | None:
    if not cursor:
        return None
    instant, _, execution_id = cursor.partition(":")
    if not (instant.isascii() and instant.isdigit() and len(instant) <= _MOST_DIGITS):
        raise InvalidInput("cursor: not one of this list")
    place = int(instant), execution_id
    _check_place(place, "cursor")
    return place


def _lease_place(record: Record) -> Place:
    return record.lease_until, record.execution_id


async def _least(
    records: AsyncIterator[Record], place: Callable[[Record], Place], after: Place | None, most: int
) -> list[Record]:
    """The first `most` records behind a place, in order, keeping no more than twice as many."""
    found: list[Record] = []
    async for record in records:
        if after is not None and place(record) <= after:
            continue
        found.append(record)
        if len(found) >= 2 * most:
            found.sort(key=place)
            del found[most:]
    found.sort(key=place)
    return found[:most]
