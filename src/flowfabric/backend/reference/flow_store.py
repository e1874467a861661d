"""The mechanisms about flows, as part of a store that runs the reference."""

from collections.abc import Callable, Sequence
from functools import partial

from flowfabric.backend.base import Answered
from flowfabric.backend.flow_store import (
    EdgeQuery,
    GraphCreated,
    GraphRefused,
    MemberPlace,
    MemberQuery,
)
from flowfabric.backend.reference.create_graph import start_create_graph
from flowfabric.backend.reference.flow_members import places_of
from flowfabric.backend.reference.tables import FLOWS, GROUPS, RECORDS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import Runner, Work
from flowfabric.core.flow_apply import apply_flow
from flowfabric.core.flow_cancel import go_on_with
from flowfabric.core.flow_plan import FlowAnswer, FlowPlan
from flowfabric.core.graph import Edge, Flow, Group
from flowfabric.core.new_execution import NewGraph
from flowfabric.core.states import public_state


class ReferenceFlows:
    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    async def create_graph(
        self, items: Sequence[NewGraph]
    ) -> list[Answered[GraphCreated | GraphRefused]]:
        return await self._runner.write(Work("create_graph", start_create_graph, items))

    async def apply_flows(self, plans: Sequence[FlowPlan]) -> list[Answered[FlowAnswer]]:
        return await self._runner.write(Work("apply_flows", start_apply_flows, plans))

    async def settle(self, flow_ids: Sequence[str]) -> list[Answered[bool]]:
        return await self._runner.write(Work("settle", start_settle, flow_ids))

    async def flows(self, ids: Sequence[str]) -> list[Flow | None]:
        return await self._runner.read(lambda tx: [tx.flow(flow_id) for flow_id in ids])

    async def flows_in(self, partition: int, after: str, limit: int) -> list[Flow]:
        return await self._runner.read(lambda tx: tx.tables.flows_in(partition, after, limit))

    async def flows_by_age(
        self, after: tuple[int, str] | None, limit: int, *, newest: bool = True
    ) -> list[Flow]:
        return await self._runner.read(
            lambda tx: tx.tables.flows_by_age(after, limit, newest=newest)
        )

    async def members(self, query: MemberQuery) -> list[MemberPlace]:
        return await self._runner.read(partial(read_members, query=query))

    async def edges(self, queries: Sequence[EdgeQuery]) -> list[tuple[Edge, ...]]:
        return await self._runner.read(lambda tx: [tuple(_edges(tx, one)) for one in queries])

    async def groups(self, targets: Sequence[str]) -> list[Group | None]:
        return await self._runner.read(partial(_groups, targets=targets))


def start_apply_flows(
    tx: Transaction, plans: Sequence[FlowPlan]
) -> Callable[[FlowPlan], FlowAnswer]:
    tx.fetch(FLOWS, [plan.flow_id for plan in plans])
    tx.fetch(RECORDS, [member.target for plan in plans for member in plan.members])
    return partial(apply_flow, tx)


def start_settle(tx: Transaction, flow_ids: Sequence[str]) -> Callable[[str], bool]:
    tx.fetch(FLOWS, flow_ids)

    def settle(flow_id: str) -> bool:
        flow = tx.flow(flow_id)
        return flow is not None and go_on_with(tx, flow)

    return settle


def read_members(tx: Transaction, query: MemberQuery) -> list[MemberPlace]:
    """Only of those whose public state does not follow from their state is the record read."""
    found = places_of(tx.tables, query.flow_id, query.states, query.after, query.limit)
    tx.fetch(RECORDS, [execution_id for _, execution_id, state in found if state == "blocked"])
    return [
        MemberPlace(created_at, execution_id, public_state(state, _reason(tx, execution_id, state)))
        for created_at, execution_id, state in found
    ]


def _reason(tx: Transaction, execution_id: str, state: str) -> str:
    record = tx.record(execution_id) if state == "blocked" else None
    return record.reason if record is not None else ""


def _edges(tx: Transaction, query: EdgeQuery) -> list[Edge]:
    match query.of:
        case "source":
            return _of_flow(query, tx.tables.outgoing(query.id, query.after, query.limit))
        case "target":
            return _of_flow(query, tx.tables.incoming(query.id, query.after, query.limit))
        case "flow":
            return tx.tables.flow_edges(query.flow_id, query.after, query.limit)
        case "edge":
            edge = tx.edge(query.flow_id, query.id)
            return [edge] if edge is not None else []


def _of_flow(query: EdgeQuery, edges: list[Edge]) -> list[Edge]:
    """A member's edges are all of its flow; a stranger to the asked one has none there."""
    return edges if edges and edges[0].flow_id == query.flow_id else []


def _groups(tx: Transaction, targets: Sequence[str]) -> list[Group | None]:
    tx.fetch(GROUPS, targets)
    return [tx.group(target) for target in targets]
