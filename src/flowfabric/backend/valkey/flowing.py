"""Flows: whole graphs, edits, settling, and their reads."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from flowfabric.backend.flow_store import (
    EdgeQuery,
    GraphCreated,
    GraphRefused,
    MemberPlace,
    MemberQuery,
)
from flowfabric.backend.limit_store import Answered
from flowfabric.backend.reference.create_graph import start_create_graph
from flowfabric.backend.reference.flow_store import start_apply_flows
from flowfabric.backend.reference.work import Work
from flowfabric.backend.valkey.calls import Calls, Reply, side_by_side
from flowfabric.backend.valkey.committing import Commits, Place
from flowfabric.backend.valkey.edge_lists import flat_lists
from flowfabric.backend.valkey.fanning import ask_all
from flowfabric.backend.valkey.flow_requests import (
    AgeFlows,
    CreateGraph,
    ListEdges,
    ListFlows,
    ListMembers,
    OneFlow,
)
from flowfabric.backend.valkey.graph_packing import (
    Members,
    pack_cancel,
    put_edges,
)
from flowfabric.backend.valkey.graph_rows import (
    edge_of,
    flow_of,
    flow_or_none,
    group_or_none,
    pack_flow,
)
from flowfabric.backend.valkey.keys import execution_partition_key, partition_key
from flowfabric.backend.valkey.limit_upkeep import attach
from flowfabric.backend.valkey.packing import Args
from flowfabric.backend.valkey.stored_flows import tables_of
from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.ids import partition_of
from flowfabric.core.new_execution import NewExecution, NewGraph
from flowfabric.core.plan import FlowAnswer, FlowApplied, FlowPlan, FlowRefused
from flowfabric.core.states import STATES, public_state

# Of small graphs that share a call.
_MOST_MEMBERS: Final = 32

I = TypeVar("I")  # noqa: E741
A = TypeVar("A")


class FlowMechanism:
    """A flow and all that is its own lies in the partition of its id."""

    _calls: Calls

    def _flow_key(self, flow_id: str) -> str:
        return partition_key(self._calls.counts.of_flow(flow_id))

    def _flow_tag(self, flow_id: str) -> str:
        return f"{{fp:{self._calls.counts.of_flow(flow_id)}}}"

    def _one(self, flow_id: str) -> OneFlow:
        return OneFlow(self._flow_tag(flow_id), flow_id)

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
        members = Members(graph, args, searchable)
        return CreateGraph(
            tag=self._flow_tag(flow.flow_id),
            flow_id=flow.flow_id,
            flow=pack_flow(flow, searchable),
            shapes=members.shapes,
            members=members.flat,
            edges=put_edges(graph.edges, args),
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
            lambda plan, _: pack_cancel(plan, self._flow_tag(plan.flow_id)),
            _cancel_answer,
            # Each ends many members, which is enough for one call.
            1,
        )

    async def settle(self, flow_ids: Sequence[str]) -> list[Answered[bool]]:
        return await self._calls.batches(
            "settle",
            flow_ids,
            self._flow_key,
            lambda flow_id, _: self._one(flow_id),
            lambda _, answer, __: bool(answer[1]),
            # Each settles many edges, which is enough for one call.
            1,
        )

    # ---- reads

    async def _read_each(
        self,
        function: str,
        items: Sequence[I],
        key: Callable[[I], str],
        pack: Callable[[I], Any],
        read: Callable[[I, Any], A],
    ) -> list[A]:
        """Items in calls of one partition each (in a cluster) or of all; answers in their order."""
        answers: list[Any] = [None] * len(items)

        async def run(places: list[int]) -> None:
            request = [pack(items[place]) for place in places]
            reply = await self._calls.run(function, key(items[places[0]]), request)
            for place, answer in zip(places, reply.head, strict=True):
                answers[place] = read(items[place], answer)

        await side_by_side(run, self._calls.parts(items, key))
        return answers

    async def flows(self, ids: Sequence[str]) -> list[Flow | None]:
        return await self._read_each(
            "flow_read",
            ids,
            self._flow_key,
            self._one,
            flow_or_none,
        )

    async def flows_in(self, partition: int, after: str, limit: int) -> list[Flow]:
        request = ListFlows(f"{{fp:{partition}}}", after, limit)
        reply = await self._calls.run("flow_list", partition_key(partition), request)
        return [flow_of(flow_id, values) for flow_id, values in reply.head]

    async def flows_by_age(
        self, after: tuple[int, str] | None, limit: int, *, newest: bool = True
    ) -> list[Flow]:
        at, behind = after or (False, "")
        replies = await ask_all(
            self._calls,
            "flow_ages",
            range(self._calls.counts.flow),
            lambda share: AgeFlows(
                partitions=share,
                after_created_at=at,
                after_id=behind,
                limit=limit,
                newest=newest,
            ),
        )
        found = [flow_of(*one) for reply in replies for one in reply.head]
        found.sort(key=lambda flow: (flow.created_at, flow.flow_id), reverse=newest)
        return found[:limit]

    async def members(self, query: MemberQuery) -> list[MemberPlace]:
        at, behind = query.after or (False, "")
        states = list(query.states or sorted(STATES))
        request = ListMembers(
            tag=self._flow_tag(query.flow_id),
            flow_id=query.flow_id,
            states=states,
            after_created_at=at,
            after_id=behind,
            limit=query.limit,
        )
        reply = await self._calls.run("flow_members", self._flow_key(query.flow_id), request)
        return [
            MemberPlace(created_at, execution_id, public_state(state, reason))
            for created_at, execution_id, state, reason in reply.head
        ]

    async def edges(self, queries: Sequence[EdgeQuery]) -> list[tuple[Edge, ...]]:
        # Whoever lives elsewhere is no member, and must not be looked for beside the flow.
        here = [query for query in queries if not self._is_elsewhere(query)]
        found = await self._read_each(
            "flow_edges",
            here,
            lambda query: self._flow_key(query.flow_id),
            lambda query: ListEdges(
                tag=self._flow_tag(query.flow_id), **msgspec.structs.asdict(query)
            ),
            lambda query, answer: tuple(edge_of(query.flow_id, one) for one in answer),
        )
        pages = dict(zip(here, found, strict=True))
        return [pages.get(query, ()) for query in queries]

    def _is_elsewhere(self, query: EdgeQuery) -> bool:
        is_of_member = query.of in ("source", "target")
        return is_of_member and partition_of(query.id) != self._calls.counts.of_flow(query.flow_id)

    async def groups(self, targets: Sequence[str]) -> list[Group | None]:
        return await self._read_each(
            "groups",
            targets,
            execution_partition_key,
            lambda target: target,
            group_or_none,
        )


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
