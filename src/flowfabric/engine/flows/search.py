"""Searching flows across partitions, newest or oldest first."""

from typing import Final, get_args

import msgspec

from flowfabric.core.cursors import CreationRange, Position, read_cursor, write_cursor
from flowfabric.core.graph import Flow, flow_state
from flowfabric.core.ids import check_namespace, check_text, parse_uuid
from flowfabric.core.pages import LARGEST_STRETCH, Room, flow_bytes
from flowfabric.engine.checking import MAX_INSTANT, whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.executions.search import parse_tag
from flowfabric.errors import Forbidden, InvalidInput
from flowfabric.operations.declaration import implements
from flowfabric.operations.flow_queries import FlowOrder, FlowQueries, FlowSearch, FoundFlow
from flowfabric.operations.types import Page

MAX_PAGE: Final = 1_000
# A search that lets little through looks at no more than this many flows a call.
MOST_LOOKS: Final = 10_000
FLOW_STATES: Final = ("open", "running", "blocked", "completed", "failed", "cancelled")


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which flows a search shows; what is unset does not matter. `namespaces` are those the asker
    may look at, None for all."""

    namespaces: tuple[str, ...] | None
    states: tuple[str, ...]
    kind: str
    tags: tuple[tuple[str, str], ...]
    created_from: int
    created_before: int
    order: FlowOrder


class FlowSearches:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @implements(FlowQueries.search_flows)
    async def search_flows(
        self, query: FlowSearch, *, visible: frozenset[str] | None = None
    ) -> Page[FoundFlow]:
        wanted, limit = _wanted(query, visible), whole(query.limit, "limit", 1, MAX_PAGE)
        newest = wanted.order == "created_desc"
        created = CreationRange(wanted.created_from, wanted.created_before, newest)
        place = _behind(query.cursor, wanted) if query.cursor else created.start()
        found: list[FoundFlow] = []
        last: Position = (0, "")
        scanned, room = 0, Room()
        while scanned < MOST_LOOKS:
            size = min(max(limit + 1, 100), LARGEST_STRETCH, MOST_LOOKS - scanned)
            flows = await self._deps.store.backend.flows_by_age(place, size, newest=newest)
            for flow in flows:
                if created.is_past(flow.created_at):
                    return Page(items=found)
                if created.holds(flow.created_at) and _matches(flow, wanted):
                    if len(found) == limit or not room.takes(flow_bytes(flow)):
                        return Page(items=found, next_cursor=write_cursor(wanted, last))
                    found.append(_found(flow))
                    last = _place(flow)
                scanned += 1
                place = _place(flow)
            if len(flows) < size:
                return Page(items=found)
        return Page(items=found, next_cursor=write_cursor(wanted, place or (0, "")))


def _wanted(query: FlowSearch, visible: frozenset[str] | None) -> _Wanted:
    for state in query.state:
        if state not in FLOW_STATES:
            raise InvalidInput(f"state: expected one of {', '.join(FLOW_STATES)}, got {state!r}")
    if query.order not in get_args(FlowOrder):
        raise InvalidInput(f"order: expected one of {', '.join(get_args(FlowOrder))}")
    return _Wanted(
        namespaces=_namespaces(query.namespace, visible),
        states=query.state,
        kind=check_text(query.kind, "kind", 1024),
        tags=tuple(parse_tag(text) for text in query.tag),
        created_from=whole(query.created_after, "created_after"),
        created_before=whole(query.created_before, "created_before"),
        order=query.order,
    )


def _namespaces(given: str, visible: frozenset[str] | None) -> tuple[str, ...] | None:
    if not given:
        return None if visible is None else tuple(sorted(visible))
    if visible is not None and given not in visible:
        raise Forbidden(f"namespace {given}")
    return (check_namespace(given),)


def _found(flow: Flow) -> FoundFlow:
    return FoundFlow(
        flow_id=flow.flow_id,
        flow_kind=flow.kind,
        namespace=flow.namespace,
        public_flow_state=flow_state(flow),
        total_members=flow.node_count,
        created_at=flow.created_at,
        tags=dict(flow.tags),
    )


def _matches(flow: Flow, wanted: _Wanted) -> bool:
    if wanted.namespaces is not None and flow.namespace not in wanted.namespaces:
        return False
    if wanted.kind and flow.kind != wanted.kind:
        return False
    if wanted.states and flow_state(flow) not in wanted.states:
        return False
    return all(flow.tags.get(key) == value for key, value in wanted.tags)


def _place(flow: Flow) -> Position:
    return flow.created_at, flow.flow_id


def _behind(cursor: str, wanted: _Wanted) -> Position:
    created_at, flow_id = read_cursor(wanted, cursor)
    return whole(created_at, "cursor", 0, MAX_INSTANT), parse_uuid(flow_id, "cursor")
