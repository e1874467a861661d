"""Editing a graph edge by edge: stage, apply, and how a member's inbound edges combine."""

import asyncio
from contextlib import suppress
from typing import Final

import msgspec

from flowfabric.backend.flow_store import EdgeQuery
from flowfabric.backend.types import Seen, With
from flowfabric.core.cycles import MOST_NODES, CycleSearch
from flowfabric.core.edge_policies import EdgePolicy, policy_of, read_edge_policy
from flowfabric.core.flow_checks import (
    check_downstream,
    check_edge,
    check_editable,
    check_linkable,
    check_member,
    check_policy_open,
    check_revision,
    check_same_edge,
    check_target,
    edge_exists,
)
from flowfabric.core.flow_plan import FlowApplied, FlowPlan
from flowfabric.core.graph import Edge, Group
from flowfabric.core.ids import check_text, parse_execution_id, parse_uuid
from flowfabric.core.rules.flows import combine, link, stage
from flowfabric.core.states import FINAL
from flowfabric.engine.checking import whole
from flowfabric.engine.deciding import decide_flow, read_flow
from flowfabric.engine.deps import Deps
from flowfabric.errors import GraphTooLargeForCycleCheck, SelfReferencingEdge
from flowfabric.operations import flows as declared
from flowfabric.operations.declaration import implements
from flowfabric.operations.flows import (
    EdgeAlreadyApplied,
    EdgeApplied,
    EdgePolicyAlreadySet,
    EdgePolicySet,
    EdgeStaged,
    NewEdge,
    NewEdgePolicy,
    StagedEdge,
)

NAME_BYTES: Final = 128
_PAGE: Final = 1_000
# How many members' edges one read of a cycle search asks for.
_NODES_A_READ: Final = 50
_WITH_GROUP: Final = frozenset[With]({"group"})


class Edges:
    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    @implements(declared.Flows.stage_edge)
    async def stage_edge(self, flow_id: str, new: NewEdge, *, caller: str = "") -> EdgeStaged:
        edge, apply = self._checked(flow_id, new, caller), new.apply
        revision = whole(new.expected_graph_revision, "expected_graph_revision")

        async def decision() -> FlowPlan | EdgeStaged:
            return await self._stage(edge, revision, apply=apply)

        answer = await decide_flow(self._deps, edge.flow_id, decision)
        if isinstance(answer, EdgeStaged):
            return answer
        return EdgeStaged(
            edge.edge_id, answer.flow.graph_revision, _unmet(answer.groups) if apply else None
        )

    @implements(declared.Flows.apply_edge)
    async def apply_edge(
        self, flow_id: str, staged: StagedEdge
    ) -> EdgeApplied | EdgeAlreadyApplied:
        parse_uuid(flow_id, "flow_id")
        parse_uuid(staged.edge_id, "edge_id")
        parse_execution_id(staged.downstream, self._deps.counts)

        async def decision() -> FlowPlan | EdgeAlreadyApplied:
            return await self._apply(flow_id, staged)

        answer = await decide_flow(self._deps, flow_id, decision)
        if isinstance(answer, FlowApplied):
            return EdgeApplied(_unmet(answer.groups))
        return answer

    @implements(declared.Flows.set_edge_group_policy)
    async def set_edge_group_policy(
        self, flow_id: str, execution_id: str, policy: object
    ) -> EdgePolicySet | EdgePolicyAlreadySet:
        parse_uuid(flow_id, "flow_id")
        parse_execution_id(execution_id, self._deps.counts)
        chosen = _chosen(policy)

        async def decision() -> FlowPlan | EdgePolicyAlreadySet:
            flow, seen, group = await asyncio.gather(
                read_flow(self._deps, flow_id), self._read(execution_id), self._group(execution_id)
            )
            check_editable(flow_id, flow)
            check_member(flow_id, execution_id, seen.record if seen else None)
            check_policy_open(group)
            if group is not None and policy_of(group) == chosen:
                return EdgePolicyAlreadySet()
            return combine(flow_id, execution_id, group, chosen)

        answer = await decide_flow(self._deps, flow_id, decision)
        return EdgePolicySet() if isinstance(answer, FlowApplied) else answer

    # ---- staging

    def _checked(self, flow_id: str, new: NewEdge, caller: str) -> Edge:
        """The edge a request describes, all of it readable."""
        upstream = parse_execution_id(new.upstream, self._deps.counts)
        downstream = parse_execution_id(new.downstream, self._deps.counts)
        edge = Edge(
            edge_id=parse_uuid(new.edge_id, "edge_id"),
            flow_id=parse_uuid(flow_id, "flow_id"),
            source=upstream,
            target=downstream,
            kind=edge_kind(new.dependency_kind),
            data_ref=data_ref(new.data_passing_ref),
            created_by=check_text(caller, "created_by", 1024),
        )
        if upstream == downstream:
            raise SelfReferencingEdge(f"{upstream} cannot wait for itself")
        return edge

    async def _stage(self, edge: Edge, revision: int, *, apply: bool) -> FlowPlan | EdgeStaged:
        flow, stored = await asyncio.gather(
            read_flow(self._deps, edge.flow_id), self._edge(edge.flow_id, edge.edge_id)
        )
        flow = check_editable(edge.flow_id, flow)
        if stored is not None:
            check_same_edge(stored, edge)
            return await self._stage_again(stored, flow.graph_revision, apply=apply)
        check_revision(flow, revision)
        upstream, downstream, group = await asyncio.gather(
            self._read(edge.source), self._read(edge.target), self._group(edge.target)
        )
        check_member(flow.flow_id, edge.source, upstream.record if upstream else None)
        target = check_member(flow.flow_id, edge.target, downstream.record if downstream else None)
        check_target(target)
        await self._check_pair(edge)
        await self._check_cycle(edge)
        if not apply:
            return stage(edge, group, revision)
        check_linkable(target)
        return link(msgspec.structs.replace(edge, state="open"), group, target, revision)

    async def _stage_again(
        self, stored: Edge, revision: int, *, apply: bool
    ) -> FlowPlan | EdgeStaged:
        """A repeat is answered like the first call; what that did not get to is done."""
        group = await self._group(stored.target)
        if apply and stored.state == "staged":
            seen = await self._read(stored.target)
            target = check_downstream(stored.flow_id, stored.target, seen.record if seen else None)
            check_linkable(target)
            return link(stored, group, target)
        groups = (group,) if group is not None else ()
        return EdgeStaged(stored.edge_id, revision, _unmet(groups) if apply else None)

    async def _check_pair(self, edge: Edge) -> None:
        """Whether another edge joins the same two members. Both lists are read page by page, and
        the shorter one settles it."""
        out_after = in_after = ""
        while True:
            outgoing, incoming = await self._deps.store.backend.edges(
                [
                    EdgeQuery(edge.flow_id, "source", edge.source, out_after, _PAGE),
                    EdgeQuery(edge.flow_id, "target", edge.target, in_after, _PAGE),
                ]
            )
            for other in (*outgoing, *incoming):
                if (other.source, other.target) == (edge.source, edge.target):
                    raise edge_exists(other)
            if len(outgoing) < _PAGE or len(incoming) < _PAGE:
                return
            out_after, in_after = outgoing[-1].edge_id, incoming[-1].edge_id

    async def _check_cycle(self, edge: Edge) -> None:
        search = CycleSearch(edge.source, edge.target)
        while search.frontier:
            found: list[str] = []
            for start in range(0, len(search.frontier), _NODES_A_READ):
                nodes = search.frontier[start : start + _NODES_A_READ]
                # One more than may be visited: a node with so many edges settles it alone.
                queries = [
                    EdgeQuery(edge.flow_id, "source", node, "", MOST_NODES + 1) for node in nodes
                ]
                pages = await self._deps.store.backend.edges(queries)
                found += [other.target for page in pages for other in page]
            search.feed(found)

    # ---- applying

    async def _apply(self, flow_id: str, staged: StagedEdge) -> FlowPlan | EdgeAlreadyApplied:
        seen, edge, flow, group = await asyncio.gather(
            self._read(staged.downstream),
            self._edge(flow_id, staged.edge_id),
            read_flow(self._deps, flow_id),
            self._group(staged.downstream),
        )
        record = seen.record if seen else None
        target = check_downstream(flow_id, staged.downstream, record)
        edge = check_edge(
            edge,
            staged.edge_id,
            {
                "flow_id": flow_id,
                "target": staged.downstream,
                "source": staged.upstream,
                "kind": staged.dependency_kind,
                "data_ref": staged.data_passing_ref,
            },
        )
        if edge.state != "staged":
            return EdgeAlreadyApplied()
        check_editable(flow_id, flow)
        check_linkable(target)
        return link(edge, group, target)

    # ---- reads

    async def _read(self, execution_id: str) -> Seen | None:
        return await self._deps.store.read(execution_id)

    async def _edge(self, flow_id: str, edge_id: str) -> Edge | None:
        (found,) = await self._deps.store.backend.edges([EdgeQuery(flow_id, "edge", edge_id)])
        return found[0] if found else None

    async def _group(self, target: str) -> Group | None:
        (group,) = await self._deps.store.backend.groups([target])
        return group


async def check_not_waiting_for(deps: Deps, parent: str, children: tuple[str, ...]) -> None:
    """Whether none of these members waits, itself or through others, for the one that is to wait
    for it: neither would ever run. A graph too large to search is trusted."""
    search = CycleSearch(parent, *children)
    with suppress(GraphTooLargeForCycleCheck):
        while search.frontier:
            found: list[str] = []
            for start in range(0, len(search.frontier), _NODES_A_READ):
                nodes = search.frontier[start : start + _NODES_A_READ]
                for seen in await deps.store.backend.read(nodes, _WITH_GROUP):
                    found += _awaited(seen)
            search.feed(found)


def _awaited(seen: Seen | None) -> list[str]:
    """The members that one waits for, or will when its staged edges are applied."""
    if seen is None or seen.group is None or seen.record.state in FINAL:
        return []
    open_round = seen.group.round if seen.group.state == "pending" else None
    return [
        edge.source
        for edge in seen.incoming
        if edge.state == "staged" or (edge.state == "open" and edge.round == open_round)
    ]


def edge_kind(value: object) -> str:
    """A word stored with the edge; only one of them means anything to the engine."""
    return check_text(value, "dependency_kind", NAME_BYTES, allow_empty=False, allow_control=False)


def data_ref(value: object) -> str:
    return check_text(value, "data_passing_ref", NAME_BYTES, allow_control=False)


def _chosen(policy: object) -> EdgePolicy:
    if isinstance(policy, NewEdgePolicy):
        members = ((name, getattr(policy, name)) for name in NewEdgePolicy.__struct_fields__)
        policy = {name: one for name, one in members if one is not None}
    return read_edge_policy(policy)


def _unmet(groups: tuple[Group, ...]) -> int:
    return sum(group.n - group.succeeded for group in groups)
