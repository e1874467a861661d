"""Reads of flows, their members and edges. Nothing here changes anything."""

from typing import Final, Literal

from flowfabric.backend.flow_store import EdgeQuery, MemberQuery
from flowfabric.backend.types import With
from flowfabric.core.edge_policies import policy_of
from flowfabric.core.graph import Edge, Flow, Group, Upstream, flow_state, resolved_edges
from flowfabric.core.ids import parse_execution_id, parse_uuid
from flowfabric.core.pages import Position, read_cursor, write_cursor
from flowfabric.core.states import PUBLIC_STATES
from flowfabric.engine.checking import MAX_INSTANT, stored, whole
from flowfabric.engine.deciding import read_flow
from flowfabric.engine.deps import Deps
from flowfabric.errors import Corruption, FlowNotFound, InvalidInput
from flowfabric.operations.declaration import implements
from flowfabric.operations.execution_queries import ExecutionQueries, Upstreams
from flowfabric.operations.flow_queries import (
    Direction,
    EdgeGroup,
    EdgeSnapshot,
    FlowQueries,
    FlowSnapshot,
    FlowSummary,
    Member,
)
from flowfabric.operations.types import Page

MAX_PAGE: Final = 1_000
_MEMBERS: Final = "members"
_ENDS: Final[dict[str, Literal["source", "target"]]] = {"incoming": "target", "outgoing": "source"}
_STATUS: Final = {"open": "active", "running": "active", "blocked": "active"}


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

    async def upstreams(self, execution_id: str, *, results: bool = False) -> tuple[Upstream, ...]:
        """Who feeds a member and how they ended, by edge id; on request with the results of named
        inputs, as far as they fit one answer."""
        parse_execution_id(execution_id, self._deps.counts)
        include = frozenset[With]({"upstream_results" if results else "upstreams"})
        return (await self._deps.seen(execution_id, include)).upstreams

    @implements(ExecutionQueries.upstreams)
    async def list_upstreams(self, execution_id: str, *, results: bool = False) -> Upstreams:
        return Upstreams(await self.upstreams(execution_id, results=results))

    async def upstream(self, execution_id: str, name: str) -> Upstream | None:
        """The upstream input of one name: of several the one that was satisfied first."""
        named = [
            one
            for one in await self.upstreams(execution_id, results=True)
            if one.data_ref == name and one.satisfied_at
        ]
        return min(named, key=lambda one: (one.satisfied_at, one.edge_id), default=None)

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
