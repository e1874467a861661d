"""Reads of flows, their members and edges. Nothing here changes anything."""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from flowfabric.backend.flowing import EdgeQuery, MemberQuery
from flowfabric.backend.types import With
from flowfabric.core.cursors import Place, read_cursor, write_cursor
from flowfabric.core.edge_policies import EdgePolicy, policy_of
from flowfabric.core.graph import Edge, Flow, Group, flow_state, resolved_edges
from flowfabric.core.ids import parse_execution_id, parse_uuid
from flowfabric.core.partitions import parse_partition_key
from flowfabric.core.states import PUBLIC_STATES
from flowfabric.core.upstreams import Upstream
from flowfabric.engine.checking import MAX_INSTANT, stored, whole
from flowfabric.engine.deps import Deps
from flowfabric.engine.flow_deciding import read_flow
from flowfabric.engine.flow_types import EdgeSnapshot, edge_snapshot
from flowfabric.errors import Corruption, InvalidInput
from flowfabric.operations import executions as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.executions import Upstreams

MAX_PAGE: Final = 1_000
_MEMBERS: Final = "members"
Direction = Literal["incoming", "outgoing"]
_ENDS: Final[dict[str, Literal["source", "target"]]] = {"incoming": "target", "outgoing": "source"}
_STATUS: Final = {"open": "active", "running": "active", "blocked": "active"}


class EdgeGroup(msgspec.Struct, frozen=True, kw_only=True):
    """How far the inbound edges of one member have come."""

    downstream_execution_id: str
    policy: EdgePolicy
    total_deps: int
    satisfied_count: int
    failed_count: int
    skipped_count: int
    running_count: int
    group_state: str


class FlowSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    flow_id: str
    flow_kind: str
    namespace: str
    public_flow_state: str
    graph_revision: int
    node_count: int
    edge_count: int
    total_members: int
    members: Mapping[str, int]
    incomplete: bool
    unsettled: int
    due_at: int | None
    cancelled_at: int | None
    cancel_reason: str | None
    cancel_policy: str | None
    finished_at: int | None
    created_at: int
    changed_at: int
    tags: Mapping[str, str]
    edge_groups: tuple[EdgeGroup, ...]


class FlowSummary(msgspec.Struct, frozen=True):
    flow_id: str
    created_at: int
    status: str


class FlowPage(msgspec.Struct, frozen=True):
    flows: tuple[FlowSummary, ...]
    next_cursor: str = ""


class Member(msgspec.Struct, frozen=True):
    execution_id: str
    public_state: str


class MemberPage(msgspec.Struct, frozen=True):
    members: tuple[Member, ...]
    next_cursor: str = ""


class EdgePage(msgspec.Struct, frozen=True):
    edges: tuple[EdgeSnapshot, ...]
    next_cursor: str = ""


class FlowReads:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    async def describe_flow(self, flow_id: str) -> FlowSnapshot | None:
        parse_uuid(flow_id, "flow_id")
        flow = await read_flow(self._deps, flow_id)
        if flow is None:
            return None
        return _snapshot(flow, await self._groups(flow_id))

    async def list_flows(
        self,
        partition: str,
        cursor: str = "",
        limit: int = 50,
        namespaces: frozenset[str] | None = None,
    ) -> FlowPage:
        """All flows of a partition, finished ones too, by id; those of some namespaces, if they are
        given. Then a page may be short and yet have a next one."""
        key = parse_partition_key(partition)
        if key.family != "flow" or key.index >= self._deps.counts.flow:
            raise InvalidInput("partition: expected a partition of flows of this deployment")
        after = parse_uuid(cursor, "cursor") if cursor else ""
        size = _size(limit)
        if not size:
            return FlowPage(())
        found = await self._deps.store.backend.flows_in(key.index, after, size + 1)
        flows = tuple(
            FlowSummary(_stored_id(flow), flow.created_at, status_of(flow))
            for flow in found[:size]
            if namespaces is None or flow.namespace in namespaces
        )
        return FlowPage(flows, found[size - 1].flow_id if len(found) > size else "")

    async def list_members(self, flow_id: str, cursor: str = "", limit: int = 50) -> MemberPage:
        """Members by creation."""
        parse_uuid(flow_id, "flow_id")
        size = _size(limit)
        if not size:
            return MemberPage(())
        after = _behind(cursor, flow_id) if cursor else None
        query = MemberQuery(flow_id=flow_id, after=after, limit=size + 1)
        found = await self._deps.store.backend.members(query)
        members = tuple(Member(one.execution_id, one.public_state) for one in found[:size])
        if len(found) <= size:
            return MemberPage(members)
        last = found[size - 1]
        place = (last.created_at, last.execution_id)
        return MemberPage(members, write_cursor((_MEMBERS, flow_id), place))

    async def list_edges(
        self,
        flow_id: str,
        execution_id: str = "",
        direction: Direction = "outgoing",
        cursor: str = "",
        limit: int = 50,
    ) -> EdgePage:
        """Edges by id: those that leave or reach one execution, or all of the flow."""
        parse_uuid(flow_id, "flow_id")
        after = parse_uuid(cursor, "cursor") if cursor else ""
        size = _size(limit)
        if not size:
            return EdgePage(())
        if not execution_id:
            query = EdgeQuery(flow_id, "flow", "", after, size + 1)
        else:
            parse_execution_id(execution_id, self._deps.counts)
            query = EdgeQuery(flow_id, _end(direction), execution_id, after, size + 1)
        (found,) = await self._deps.store.backend.edges([query])
        shown = tuple(edge_snapshot(_checked(one, query)) for one in found)
        more = len(found) > size
        return EdgePage(shown[:size], found[size - 1].edge_id if more else "")

    async def describe_edge(self, flow_id: str, edge_id: str) -> EdgeSnapshot | None:
        parse_uuid(flow_id, "flow_id")
        query = EdgeQuery(flow_id, "edge", parse_uuid(edge_id, "edge_id"))
        (found,) = await self._deps.store.backend.edges([query])
        return edge_snapshot(_checked(found[0], query)) if found else None

    async def upstreams(self, execution_id: str, *, results: bool = False) -> tuple[Upstream, ...]:
        """Who feeds a member and how they ended, by edge id; on request with the results of named
        inputs, as far as they fit one answer."""
        parse_execution_id(execution_id, self._deps.counts)
        beside = frozenset[With]({"upstream_results" if results else "upstreams"})
        return (await self._deps.seen(execution_id, beside)).upstreams

    @implements(declared.Executions.upstreams)
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
        members={f"members_{name}": flow.counts.get(name, 0) for name in PUBLIC_STATES},
        incomplete=flow.incomplete,
        unsettled=len(flow.unsettled),
        due_at=flow.due_at or None,
        cancelled_at=flow.cancelled_at or None,
        cancel_reason=flow.cancel_reason if flow.cancelled_at else None,
        cancel_policy=flow.cancel_policy or None,
        finished_at=flow.finished_at or None,
        created_at=flow.created_at,
        changed_at=flow.changed_at,
        tags=flow.tags,
        edge_groups=tuple(_group(group) for group in groups),
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


def _size(limit: int) -> int:
    return min(whole(limit, "limit"), MAX_PAGE)


def _behind(cursor: str, flow_id: str) -> Place:
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
