"""Searching flows across partitions, newest or oldest first."""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Final, get_args
from zlib import crc32

import msgspec

from flowfabric.core.graph import Flow, flow_state
from flowfabric.core.ids import check_namespace, check_text, parse_uuid
from flowfabric.engine.checking import MAX_INSTANT, whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.searches import parse_tag
from flowfabric.errors import Forbidden, InvalidInput
from flowfabric.operations import flows as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.flows import FlowOrder, FlowSearch, FoundFlow
from flowfabric.operations.types import Page

MAX_PAGE: Final = 1_000
# A search that lets little through looks at no more than this many flows a call.
MOST_LOOKS: Final = 10_000
FLOW_STATES: Final = ("open", "running", "blocked", "completed", "failed", "cancelled")
_Place = tuple[int, str]


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

    @implements(declared.Flows.search_flows)
    async def search_flows(
        self, query: FlowSearch, *, visible: frozenset[str] | None = None
    ) -> Page[FoundFlow]:
        wanted, limit = _wanted(query, visible), whole(query.limit, "limit", 1, MAX_PAGE)
        asked = crc32(msgspec.json.encode(wanted))
        place = _read_cursor(query.cursor, asked) if query.cursor else _start(wanted)
        found: list[FoundFlow] = []
        last: _Place | None = None
        scanned = 0
        newest = wanted.order == "created_desc"
        while scanned < MOST_LOOKS:
            size = min(max(limit + 1, 100), MOST_LOOKS - scanned)
            flows = await self._deps.store.backend.flows_by_age(place, size, newest=newest)
            for flow in flows:
                if _is_past(flow, wanted):
                    return Page(items=found)
                if _matches(flow, wanted):
                    if len(found) == limit:
                        return Page(items=found, next_cursor=_write_cursor(last, asked))
                    found.append(_found(flow))
                    last = (flow.created_at, flow.flow_id)
                scanned += 1
                place = (flow.created_at, flow.flow_id)
            if len(flows) < size:
                return Page(items=found)
        return Page(items=found, next_cursor=_write_cursor(place, asked))


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
    if flow.created_at < wanted.created_from:
        return False
    if wanted.created_before and flow.created_at >= wanted.created_before:
        return False
    return all(flow.tags.get(key) == value for key, value in wanted.tags)


def _start(wanted: _Wanted) -> _Place | None:
    """Where the range of creation begins."""
    if wanted.order == "created_asc":
        return (wanted.created_from, "") if wanted.created_from else None
    return (wanted.created_before, "") if wanted.created_before else None


def _is_past(flow: Flow, wanted: _Wanted) -> bool:
    """Whether the range of creation is over, so that no later flow is in it."""
    if wanted.order == "created_desc":
        return flow.created_at < wanted.created_from
    return 0 < wanted.created_before <= flow.created_at


# ---- cursors


class _Cursor(msgspec.Struct, array_like=True):
    """`asked` stands for order and filter: a place in one listing means nothing in another."""

    asked: int
    created_at: int
    flow_id: str


def _write_cursor(place: _Place | None, asked: int) -> str:
    cursor = _Cursor(asked, *(place or (0, "")))
    return urlsafe_b64encode(msgspec.json.encode(cursor)).decode().rstrip("=")


def _read_cursor(text: str, asked: int) -> _Place:
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        cursor = msgspec.json.decode(urlsafe_b64decode(padded), type=_Cursor)
    except (UnicodeEncodeError, binascii.Error, msgspec.MsgspecError):
        raise InvalidInput("cursor: malformed") from None
    if cursor.asked != asked:
        raise InvalidInput("cursor: made by another query")
    created_at = whole(cursor.created_at, "cursor", 0, MAX_INSTANT)
    return created_at, parse_uuid(cursor.flow_id, "cursor")
