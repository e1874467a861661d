"""Searching flows across partitions, newest or oldest first."""

from typing import Final, Literal, get_args

import msgspec

from flowfabric.core.cursors import CreationRange, Place, read_cursor, write_cursor
from flowfabric.core.graph import Flow, flow_state
from flowfabric.core.ids import check_namespace, check_text, parse_uuid
from flowfabric.engine.checking import MAX_INSTANT, whole
from flowfabric.engine.deps import Deps
from flowfabric.errors import InvalidInput

MAX_PAGE: Final = 1_000
# A search that lets little through looks at no more than this many flows a call.
MOST_LOOKS: Final = 10_000
FLOW_STATES: Final = ("open", "running", "blocked", "completed", "failed", "cancelled")
FlowOrder = Literal["created_desc", "created_asc"]


class FlowFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which flows a search shows; what is unset does not matter. `namespaces` are those the asker
    may look at, None for all."""

    namespaces: frozenset[str] | None = None
    states: tuple[str, ...] = ()
    kind: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    created_from: int = 0
    created_before: int = 0


class FlowsFound(msgspec.Struct, frozen=True):
    """A page may be short, or empty, and still have a next one."""

    flows: tuple[Flow, ...]
    next_cursor: str
    scanned: int


class FlowSearches:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    async def search_flows(
        self,
        wanted: FlowFilter,
        order: FlowOrder = "created_desc",
        cursor: str = "",
        limit: int = 50,
    ) -> FlowsFound:
        _check(wanted, order)
        whole(limit, "limit", 1, MAX_PAGE)
        query = (order, wanted)
        newest = order == "created_desc"
        created = CreationRange(wanted.created_from, wanted.created_before, newest)
        place = _behind(cursor, query) if cursor else created.start()
        found: list[Flow] = []
        scanned = 0
        while scanned < MOST_LOOKS:
            size = min(max(limit + 1, 100), MOST_LOOKS - scanned)
            flows = await self._deps.store.backend.flows_by_age(place, size, newest=newest)
            for flow in flows:
                if created.is_past(flow.created_at):
                    return FlowsFound(tuple(found), "", scanned)
                if created.holds(flow.created_at) and _matches(flow, wanted):
                    if len(found) == limit:
                        return FlowsFound(
                            tuple(found), write_cursor(query, _place(found[-1])), scanned
                        )
                    found.append(flow)
                scanned += 1
                place = _place(flow)
            if len(flows) < size:
                return FlowsFound(tuple(found), "", scanned)
        return FlowsFound(tuple(found), write_cursor(query, place or (0, "")), scanned)


def _check(wanted: FlowFilter, order: str) -> None:
    for namespace in wanted.namespaces or ():
        check_namespace(namespace)
    for state in wanted.states:
        if state not in FLOW_STATES:
            raise InvalidInput(f"state: expected one of {', '.join(FLOW_STATES)}, got {state!r}")
    check_text(wanted.kind, "kind", 1024)
    whole(wanted.created_from, "created_after")
    whole(wanted.created_before, "created_before")
    if order not in get_args(FlowOrder):
        raise InvalidInput(f"order: expected one of {', '.join(get_args(FlowOrder))}")


def _matches(flow: Flow, wanted: FlowFilter) -> bool:
    if wanted.namespaces is not None and flow.namespace not in wanted.namespaces:
        return False
    if wanted.kind and flow.kind != wanted.kind:
        return False
    if wanted.states and flow_state(flow) not in wanted.states:
        return False
    return all(flow.tags.get(key) == value for key, value in wanted.tags)


def _place(flow: Flow) -> Place:
    return flow.created_at, flow.flow_id


def _behind(cursor: str, query: tuple[FlowOrder, FlowFilter]) -> Place:
    created_at, flow_id = read_cursor(query, cursor)
    return whole(created_at, "cursor", 0, MAX_INSTANT), parse_uuid(flow_id, "cursor")
