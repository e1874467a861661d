"""Flows: whole graphs, edits, settling, and their reads."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from flowfabric.backend.base import Answered
from flowfabric.backend.flow_store import (
    EdgeQuery,
    GraphCreated,
    GraphRefused,
    MemberPlace,
    MemberQuery,
)
from flowfabric.backend.reference.flows import start_apply_flows, start_create_graph
from flowfabric.backend.reference.work import Work
from flowfabric.backend.valkey.calls import Read, Reply, side_by_side
from flowfabric.backend.valkey.commits import Commits, Place
from flowfabric.backend.valkey.creation import pack_shape
from flowfabric.backend.valkey.fan_out import fetch
from flowfabric.backend.valkey.flow_rows import tables_of
from flowfabric.backend.valkey.graph_rows import (
    ALL,
    INCOMING,
    OUTGOING,
    Searchable,
    edges_of,
    flat_lists,
    flow_of,
    flow_or_none,
    group_of,
    pack_edge,
    pack_flow,
    pack_group,
)
from flowfabric.backend.valkey.keys import (
    CHILD_RANGES,
    FIELDS,
    FLOW_RANGES,
    partition_key,
    partition_tag,
    stored_key,
)
from flowfabric.backend.valkey.limit_upkeep import attach
from flowfabric.backend.valkey.packing import (
    Args,
    decode,
    encode,
    pack_event,
    static_text,
)
from flowfabric.backend.valkey.requests import CancelFlow, CreateGraph, Member, OneFlow, Shape
from flowfabric.backend.valkey.search import SearchMechanism, Spot, ViewKeys
from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.ids import partition_of, uuid_of
from flowfabric.core.new_execution import NewExecution, NewGraph
from flowfabric.core.plan import FlowAnswer, FlowApplied, FlowPlan, FlowRefused
from flowfabric.core.states import STATES, public_state

# Of small graphs that share a call.
_MOST_MEMBERS: Final = 32
# Which list has the edges of a member that are asked for.
_LISTS: Final = {"source": OUTGOING, "target": INCOMING}

I = TypeVar("I")  # noqa: E741
A = TypeVar("A")


class FlowMechanism(SearchMechanism):
    """A flow and all that is its own lies in the partition of its id."""

    def _flow_key(self, flow_id: str) -> str:
        return partition_key(self._calls.counts.of_flow(flow_id))

    def _flow_tag(self, flow_id: str) -> str:
        return partition_tag(self._calls.counts.of_flow(flow_id))

    # ---- changes

    async def create_graph(
        self, items: Sequence[NewGraph]
    ) -> list[Answered[GraphCreated | GraphRefused]]:
        """A new graph is written by a function; the reference adds to one that is known."""
        answers: list[Any] = [None] * len(items)
        new = [place for place, graph in enumerate(items) if graph.is_first]
        _fill(answers, new, await self._create_new([items[place] for place in new]))
        known = [place for place, answer in enumerate(answers) if answer is None]
        work = Work("create_graph", start_create_graph, [items[place] for place in known])
        _fill(answers, known, await self._by_reference(work, lambda graph: graph.flow.flow_id))
        await attach(self._calls, _charged(items, answers))
        return answers

    async def _create_new(self, items: Sequence[NewGraph]) -> list[Any]:
        def create(graphs: list[NewGraph]) -> Awaitable[list[Any]]:
            return self._calls.batches(
                "graph",
                graphs,
                lambda one: self._flow_key(one.flow.flow_id),
                self._pack_graph,
                _graph_answer,
            )

        answers = await side_by_side(create, _in_calls(items))
        return [answer for part in answers for answer in part]

    async def _by_reference(self, work: Work[I, A], flow: Callable[[I], str]) -> list[Answered[A]]:
        def place(item: I) -> Place:
            flow_id = flow(item)
            tables = tables_of(self._flow_tag(flow_id), self._calls.searchable, flow_id)
            return Place(self._flow_key(flow_id), "flow", flow_id, tables)

        return await Commits(self._calls).run_each(work, place)

    def _pack_graph(self, graph: NewGraph, args: Args) -> CreateGraph:
        searchable, flow = self._calls.searchable, graph.flow
        members = _Members(graph, args, searchable)
        return CreateGraph(
            tag=self._flow_tag(flow.flow_id),
            flow_id=flow.flow_id,
            flow=pack_flow(flow, searchable),
            shapes=members.shapes,
            members=members.flat,
            edges=_put_edges(graph.edges, args),
            lists=flat_lists(graph.edges),
            is_last=graph.is_last,
        )

    async def apply_flows(self, plans: Sequence[FlowPlan]) -> list[Answered[FlowAnswer]]:
        """A cancel races with all members of a flow, so it is one step inside the server; the
        reference edits a graph."""
        answers: list[Any] = [None] * len(plans)
        cancels = [place for place, plan in enumerate(plans) if plan.cancels]
        edits = [place for place, plan in enumerate(plans) if not plan.cancels]
        work = Work("apply_flows", start_apply_flows, [plans[place] for place in edits])
        _fill(answers, edits, await self._by_reference(work, lambda plan: plan.flow_id))
        _fill(answers, cancels, await self._cancel([plans[place] for place in cancels]))
        return answers

    async def _cancel(self, plans: Sequence[FlowPlan]) -> list[Answered[FlowAnswer]]:
        return await self._calls.batches(
            "cancel_flow",
            plans,
            lambda plan: self._flow_key(plan.flow_id),
            lambda plan, _: _pack_cancel(plan, self._flow_tag(plan.flow_id)),
            _cancel_answer,
            # Each ends many members, which is enough for one call.
            1,
        )

    async def settle(self, flow_ids: Sequence[str]) -> list[Answered[bool]]:
        return await self._calls.batches(
            "settle",
            flow_ids,
            self._flow_key,
            lambda flow_id, _: OneFlow(self._flow_tag(flow_id), flow_id),
            lambda _, answer, __: bool(answer[1]),
            # Each settles many edges, which is enough for one call.
            1,
        )

    # ---- reads

    async def flows(self, ids: Sequence[str]) -> list[Flow | None]:
        reads = [("GET", stored_key("flow", self._flow_tag(own), own)) for own in ids]
        rows = zip(ids, (await fetch(self._calls, reads)).checked(), strict=True)
        return [flow_of(own, decode(row)) if row is not None else None for own, row in rows]

    async def flows_in(self, partition: int, after: str, limit: int) -> list[Flow]:
        behind = Spot(0, after) if after else None
        spots = await self.walk_view(ViewKeys(["flows"], [partition]), behind, limit)
        flows = await self.flows([spot.id for spot in spots])
        return [flow for flow in flows if flow is not None]

    async def flows_by_age(
        self, after: tuple[int, str] | None, limit: int, *, newest: bool = True
    ) -> list[Flow]:
        keys = ViewKeys(["flows_by_age"], self._everywhere, newest)
        spots = await self.walk_view(keys, Spot(*after) if after else None, limit)
        flows = await self.flows([spot.id for spot in spots])
        return [flow for flow in flows if flow is not None]

    async def members(self, query: MemberQuery) -> list[MemberPlace]:
        """Only of those whose public state does not follow from their state is the record read."""
        if query.parent_id:
            return await self._children(query)
        states = list(query.states or sorted(STATES))
        names = [(f"flow:{query.flow_id}", FLOW_RANGES[state]) for state in states]
        spots = await self._walk_members(query, names)
        blocked = [spot.id for spot in spots if states[spot.view] == "blocked"]
        records = zip(blocked, await self.records(blocked), strict=True)
        reasons = {own: record.reason for own, record in records if record is not None}
        return [
            MemberPlace(
                spot.score, spot.id, public_state(states[spot.view], reasons.get(spot.id, ""))
            )
            for spot in spots
        ]

    async def _children(self, query: MemberQuery) -> list[MemberPlace]:
        names = [(f"children:{query.parent_id}", start) for start in CHILD_RANGES.values()]
        spots = await self._walk_members(query, names)
        return [
            MemberPlace(one.created_at, one.execution_id, public_state(one.state, one.reason))
            for one in await self.records([spot.id for spot in spots])
            if one is not None and one.flow_id == query.flow_id
        ]

    async def _walk_members(
        self, query: MemberQuery, names: Sequence[tuple[str, int]]
    ) -> list[Spot]:
        keys = ViewKeys(names, [self._calls.counts.of_flow(query.flow_id)])
        after = Spot(*query.after) if query.after else None
        return await self.walk_view(keys, after, query.limit)

    async def edges(self, queries: Sequence[EdgeQuery]) -> list[tuple[Edge, ...]]:
        # Whoever lives elsewhere is no member, and must not be looked for beside the flow.
        here = [query for query in queries if not self._is_elsewhere(query)]
        fetched = await fetch(self._calls, [self._edge_read(query) for query in here])
        found = zip(here, fetched.checked(), strict=True)
        pages = {query: tuple(_edges(query, reply)) for query, reply in found}
        return [pages.get(query, ()) for query in queries]

    def _edge_read(self, query: EdgeQuery) -> Read:
        tag = self._flow_tag(query.flow_id)
        if query.of == "edge":
            return ("HGET", stored_key("edges", tag, query.flow_id), query.id)
        name = ALL if query.of == "flow" else _LISTS[query.of] + uuid_of(query.id)
        return ("edges", tag, query.flow_id, name, query.after, str(query.limit))

    def _is_elsewhere(self, query: EdgeQuery) -> bool:
        is_of_member = query.of in _LISTS
        return is_of_member and partition_of(query.id) != self._calls.counts.of_flow(query.flow_id)

    async def groups(self, targets: Sequence[str]) -> list[Group | None]:
        reads = [("HGET", stored_key("execution", own), FIELDS["group"]) for own in targets]
        rows = zip(targets, (await fetch(self._calls, reads)).checked(), strict=True)
        return [group_of(own, decode(row)) if row is not None else None for own, row in rows]


def _pack_cancel(plan: FlowPlan, tag: str) -> CancelFlow:
    return CancelFlow(
        tag=tag,
        flow_id=plan.flow_id,
        uncancelled=plan.guard.uncancelled,
        version=plan.guard.version or False,
        policy=plan.set["cancel_policy"],
        reason=plan.set["cancel_reason"],
        event=pack_event(plan.event),
    )


def _put_edges(edges: Sequence[Edge], args: Args) -> list[Any]:
    """The number of the first edge's packed row, without the instant that is its last element, and
    the id of each."""
    first = args.put_all([encode(pack_edge(edge)[1])[:-1] for edge in edges])
    return [first, *(edge.edge_id for edge in edges)]


class _Members:
    """The members of a graph, flat; what they have in common is sent once."""

    def __init__(self, graph: NewGraph, args: Args, searchable: Searchable) -> None:
        self.shapes: list[Shape] = []
        self.flat: list[Any] = []
        self._numbers: dict[bytes, int] = {}
        groups = {group.target: encode(pack_group(group)[1]) for group in graph.groups}
        for member in graph.members:
            group = groups.get(member.execution_id)
            self.flat += Member(
                id=member.execution_id,
                shape=self._shape(member, searchable),
                static_argument=args.put(static_text(member.execution_id, member.record)),
                input_argument=args.put(member.input) if member.input else 0,
                group_argument=args.put_once(group) if group else 0,
            )

    def _shape(self, member: NewExecution, searchable: Searchable) -> int:
        shape = pack_shape(member, searchable)
        packed = encode(shape)
        number = self._numbers.get(packed, 0)
        if not number:
            self.shapes.append(shape)
            number = self._numbers[packed] = len(self.shapes)
        return number


def _edges(query: EdgeQuery, reply: Any) -> Iterator[Edge]:
    if query.of != "edge":
        return edges_of(query.flow_id, reply)
    return edges_of(query.flow_id, [query.id.encode(), reply] if reply is not None else [])


def _in_calls(graphs: Sequence[NewGraph]) -> list[list[NewGraph]]:
    """Small graphs share a call. A large one may be as large as a call may be."""
    calls: list[list[NewGraph]] = []
    room = 0
    for graph in graphs:
        if not calls or len(graph.members) > room:
            calls.append([])
            room = _MOST_MEMBERS
        calls[-1].append(graph)
        room -= max(1, len(graph.members))
    return calls


def _charged(
    items: Sequence[NewGraph], answers: Sequence[Answered[GraphCreated | GraphRefused]]
) -> Iterator[NewExecution]:
    """New members with budgets, which are to know of them."""
    for graph, answer in zip(items, answers, strict=True):
        if isinstance(answer, GraphCreated) and not answer.was_whole:
            yield from (one for one in graph.members if one.record.budget_ids)


def _fill(answers: list[Any], places: Sequence[int], found: Sequence[Any]) -> None:
    for place, answer in zip(places, found, strict=True):
        answers[place] = answer


def _graph_answer(graph: NewGraph, answer: list[Any], _: Reply) -> GraphCreated | None:
    """None of a graph that is known already."""
    if answer[0] == "known":
        return None
    return GraphCreated(flow_of(graph.flow.flow_id, answer[1]), is_new=True)


def _cancel_answer(plan: FlowPlan, answer: list[Any], reply: Reply) -> FlowAnswer:
    if answer[0] == "refused":
        return FlowRefused(flow_or_none(plan.flow_id, answer[1]))
    _, flow, cancelled, more = answer
    after = flow_of(plan.flow_id, flow)
    return FlowApplied(after, reply.now, cancelled=cancelled, more=more)
