"""Reads of flows, their members and edges, and the search for flows. Nothing is changed."""

from typing import Final, Literal, get_args

import msgspec

from flowfabric.backend.flow_store import EdgeQuery, MemberQuery
from flowfabric.backend.types import With
from flowfabric.core.edge_policies import policy_of
from flowfabric.core.graph import Edge, Flow, Group, flow_state, resolved_edges
from flowfabric.core.ids import check_namespace, check_text, parse_execution_id, parse_uuid
from flowfabric.core.pages import (
    LARGEST_STRETCH,
    CreationRange,
    Position,
    Room,
    flow_bytes,
    read_cursor,
    write_cursor,
)
from flowfabric.core.states import PUBLIC_STATES
from flowfabric.engine.checking import MAX_INSTANT, stored, whole
from flowfabric.engine.deciding import read_flow
from flowfabric.engine.deps import Deps
from flowfabric.engine.executions.search import parse_tag
from flowfabric.errors import Corruption, FlowNotFound, Forbidden, InvalidInput
from flowfabric.operations.declaration import implements
from flowfabric.operations.execution_queries import ExecutionQueries, Upstreams
from flowfabric.operations.flow_queries import (
    Direction,
    EdgeGroup,
    EdgeSnapshot,
    FlowOrder,
    FlowQueries,
    FlowSearch,
    FlowSnapshot,
    FlowSummary,
    FoundFlow,
    Member,
)
from flowfabric.operations.types import Page

MAX_PAGE: Final = 1_000
# A search that lets little through looks at no more than this many flows a call.
MOST_LOOKS: Final = 10_000
FLOW_STATES: Final = ("open", "running", "blocked", "completed", "failed", "cancelled")
_MEMBERS: Final = "members"
_ENDS: Final[dict[str, Literal["source", "target"]]] = {"incoming": "target", "outgoing": "source"}
_STATUS: Final = {"open": "active", "running": "active", "blocked": "active"}


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


class FlowReads:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @implements(FlowQueries.describe_flow)
    async def describe_flow(self, flow_id: str) -> FlowSnapshot:
        return _snapshot(await self._flow(flow_id), await self._groups(flow_id))

    @implements(FlowQueries.list_flows)
    async def list_flows(
        self,
        partition: int,
        cursor: str = "",
        limit: int = 50,
        *,
        visible: frozenset[str] | None = None,
    ) -> Page[FlowSummary]:
        """A page that leaves out flows of other namespaces may be short and yet have a next one."""
        index = whole(partition, "partition", 0, self._deps.counts.flow - 1)
        after = parse_uuid(cursor, "cursor") if cursor else ""
        size = _size(limit)
        if not size:
            return Page(items=[])
        found = await self._deps.store.backend.flows_in(index, after, size + 1)
        flows = [
            FlowSummary(_stored_id(flow), flow.created_at, status_of(flow))
            for flow in found[:size]
            if visible is None or flow.namespace in visible
        ]
        return Page(items=flows, next_cursor=found[size - 1].flow_id if len(found) > size else "")

    @implements(FlowQueries.list_members)
    async def list_members(self, flow_id: str, cursor: str = "", limit: int = 50) -> Page[Member]:
        parse_uuid(flow_id, "flow_id")
        size = _size(limit)
        if not size:
            return Page(items=[])
        after = _behind(cursor, flow_id) if cursor else None
        query = MemberQuery(flow_id=flow_id, after=after, limit=size + 1)
        found = await self._deps.store.backend.members(query)
        if not found:
            await self._flow(flow_id)
        members = [Member(one.execution_id, one.public_state) for one in found[:size]]
        if len(found) <= size:
            return Page(items=members)
        last = found[size - 1]
        place = (last.created_at, last.execution_id)
        return Page(items=members, next_cursor=write_cursor((_MEMBERS, flow_id), place))

    @implements(FlowQueries.list_edges)
    async def list_edges(
        self,
        flow_id: str,
        execution_id: str = "",
        direction: Direction = "outgoing",
        cursor: str = "",
        limit: int = 50,
    ) -> Page[EdgeSnapshot]:
        parse_uuid(flow_id, "flow_id")
        after = parse_uuid(cursor, "cursor") if cursor else ""
        size = _size(limit)
        if not execution_id:
            query = EdgeQuery(flow_id, "flow", "", after, size + 1)
        else:
            parse_execution_id(execution_id, self._deps.counts)
            query = EdgeQuery(flow_id, _end(direction), execution_id, after, size + 1)
        (found,) = await self._deps.store.backend.edges([query])
        if not found:
            await self._flow(flow_id)
        edges = [_edge(_checked(one, query)) for one in found]
        more = 0 < size < len(found)
        return Page(items=edges[:size], next_cursor=found[size - 1].edge_id if more else "")

    async def describe_edge(self, flow_id: str, edge_id: str) -> EdgeSnapshot | None:
        parse_uuid(flow_id, "flow_id")
        query = EdgeQuery(flow_id, "edge", parse_uuid(edge_id, "edge_id"))
        (found,) = await self._deps.store.backend.edges([query])
        return _edge(_checked(found[0], query)) if found else None

    @implements(ExecutionQueries.upstreams)
    async def list_upstreams(self, execution_id: str, *, results: bool = False) -> Upstreams:
        """Who feeds a member and how they ended, by edge id; on request with the results of named
        inputs, as far as they fit one answer."""
        parse_execution_id(execution_id, self._deps.counts)
        include = frozenset[With]({"upstream_results" if results else "upstreams"})
        return Upstreams((await self._deps.seen(execution_id, include)).upstreams)

    @implements(FlowQueries.search_flows)
    async def search_flows(
        self, query: FlowSearch, *, visible: frozenset[str] | None = None
    ) -> Page[FoundFlow]:
        wanted, limit = _wanted(query, visible), whole(query.limit, "limit", 1, MAX_PAGE)
        newest = wanted.order == "created_desc"
        created = CreationRange(wanted.created_from, wanted.created_before, newest)
        place = _search_place(query.cursor, wanted) if query.cursor else created.start()
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

    async def _flow(self, flow_id: str) -> Flow:
        parse_uuid(flow_id, "flow_id")
        flow = await read_flow(self._deps, flow_id)
        if flow is None:
            raise FlowNotFound(flow_id)
        return flow

    async def _groups(self, flow_id: str) -> list[Group]:
        """The groups of all members that have inbound edges, by the members' creation."""
        backend = self._deps.store.backend
        found: list[Group] = []
        after: tuple[int, str] | None = None
        while True:
            query = MemberQuery(flow_id=flow_id, after=after, limit=MAX_PAGE)
            page = await backend.members(query)
            groups = await backend.groups([one.execution_id for one in page])
            found += [group for group in groups if group and (group.n or group.staged)]
            if len(page) < MAX_PAGE:
                return found
            after = (page[-1].created_at, page[-1].execution_id)


def status_of(flow: Flow) -> str:
    """The state of a flow in the words of a listing."""
    state = flow_state(flow)
    return _STATUS.get(state, state)


def _snapshot(flow: Flow, groups: list[Group]) -> FlowSnapshot:
    return FlowSnapshot(
        flow_id=_stored_id(flow),
        flow_kind=flow.kind,
        namespace=flow.namespace,
        public_flow_state=flow_state(flow),
        graph_revision=flow.graph_revision,
        node_count=flow.node_count,
        edge_count=flow.edge_count,
        total_members=flow.node_count,
        members={name: flow.counts.get(name, 0) for name in PUBLIC_STATES},
        incomplete=flow.incomplete,
        unsettled=len(flow.unsettled),
        due_at=flow.due_at,
        cancelled_at=flow.cancelled_at,
        cancel_reason=flow.cancel_reason if flow.cancelled_at else "",
        cancel_policy=flow.cancel_policy,
        finished_at=flow.finished_at,
        created_at=flow.created_at,
        changed_at=flow.changed_at,
        tags=dict(flow.tags),
        edge_groups=[_group(group) for group in groups],
    )


def _group(group: Group) -> EdgeGroup:
    return EdgeGroup(
        downstream_execution_id=group.target,
        policy=policy_of(group),
        total_deps=group.n,
        satisfied_count=group.succeeded,
        failed_count=group.failed,
        skipped_count=group.skipped,
        running_count=max(0, group.n - resolved_edges(group)),
        group_state=group.state,
    )


def _edge(edge: Edge) -> EdgeSnapshot:
    return EdgeSnapshot(
        edge_id=edge.edge_id,
        flow_id=edge.flow_id,
        upstream_execution_id=edge.source,
        downstream_execution_id=edge.target,
        dependency_kind=edge.kind,
        data_passing_ref=edge.data_ref,
        edge_state=edge.state,
        resolved_at=edge.resolved_at,
        created_at=edge.created_at,
        created_by=edge.created_by,
    )


def _size(limit: int) -> int:
    return min(whole(limit, "limit"), MAX_PAGE)


def _behind(cursor: str, flow_id: str) -> Position:
    created_at, execution_id = read_cursor((_MEMBERS, flow_id), cursor)
    return whole(created_at, "cursor", 0, MAX_INSTANT), parse_execution_id(execution_id)


def _end(direction: object) -> Literal["source", "target"]:
    end = _ENDS.get(direction) if isinstance(direction, str) else None
    if end is None:
        raise InvalidInput("direction: expected incoming or outgoing")
    return end


def _checked(edge: Edge, query: EdgeQuery) -> Edge:
    """An edge that is not where it was found must not pass for one that is."""
    at = {"source": edge.source, "target": edge.target, "flow": "", "edge": edge.edge_id}
    found, wanted = (edge.flow_id, at[query.of]), (query.flow_id, query.id)
    if found != wanted:
        raise Corruption(f"edge {edge.edge_id}: {query.of}: listed at {wanted}, names {found}")
    where = f"edge {edge.edge_id}"
    for end in (edge.source, edge.target):
        stored(where, parse_execution_id, end)
    stored(where, parse_uuid, edge.flow_id, "flow_id")
    return edge


def _stored_id(flow: Flow) -> str:
    return stored("flows", parse_uuid, flow.flow_id, "flow_id")


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


def _search_place(cursor: str, wanted: _Wanted) -> Position:
    created_at, flow_id = read_cursor(wanted, cursor)
    return whole(created_at, "cursor", 0, MAX_INSTANT), parse_uuid(flow_id, "cursor")
