"""Mechanisms on flows: `create_graph` writes a whole graph at once, or one chunk of a large one;
`apply_flows` and `settle` go on with it; and the reads of flows, members, edges and groups."""

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from functools import partial
from heapq import merge
from itertools import islice
from typing import Final

import msgspec

from flowfabric.backend.flow_store import (
    EdgeQuery,
    GraphCreated,
    GraphRefused,
    MemberPlace,
    MemberQuery,
)
from flowfabric.backend.reference.creation import insert
from flowfabric.backend.reference.tables import EDGES, FLOWS, GROUPS, RECORDS, Tables
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.core.apply import apply_flow, go_on_with
from flowfabric.core.graph import Edge, Flow, Group, edge_key, ends_of, grown, has_work
from flowfabric.core.ids import partition_of
from flowfabric.core.members import finish_flow, keep_flow
from flowfabric.core.new_execution import ABANDONED_AFTER_MS, NewGraph
from flowfabric.core.plan import FlowAnswer, FlowPlan
from flowfabric.core.record import Record
from flowfabric.core.settle import cancel_late_siblings, settle_edges
from flowfabric.core.states import FINAL, STATES, State, public_state

_replace = msgspec.structs.replace
_PAGE: Final = 1_000

# When it was created, its id, its state.
Place = tuple[int, str, State]


def start_create_graph(
    tx: Transaction, items: Sequence[NewGraph]
) -> Callable[[NewGraph], GraphCreated | GraphRefused]:
    members = [member.execution_id for graph in items for member in graph.members]
    edges = [edge for graph in items for edge in graph.edges]
    tx.fetch(RECORDS, [*members, *(edge.source for edge in edges)])
    tx.fetch(EDGES, [edge_key(edge) for edge in edges])
    tx.fetch(GROUPS, [edge.target for edge in edges])
    return partial(create_graph, tx)


def create_graph(tx: Transaction, graph: NewGraph) -> GraphCreated | GraphRefused:
    """What is there already stays; a flow whose graph is whole is not touched at all."""
    found = tx.flow(graph.flow.flow_id)
    if found is not None and not found.incomplete:
        return GraphCreated(found, False, was_whole=True)
    refusal = _refusal(tx, graph, found)
    if refusal is not None:
        return refusal
    if found is None:
        tx.insert(FLOWS, graph.flow.flow_id, _replace(graph.flow, created_at=tx.now))
    flow = _write(tx, graph, found or graph.flow, is_first=found is None)
    return GraphCreated(flow, found is None, more=has_work(flow))


def _refusal(tx: Transaction, graph: NewGraph, found: Flow | None) -> GraphRefused | None:
    if found is not None and (found.cancelled_at or found.digest != graph.flow.digest):
        return GraphRefused(found)
    for member in graph.members:
        record = tx.record(member.execution_id)
        if record is not None and record.flow_id != graph.flow.flow_id:
            return GraphRefused(found, record=record)
    for edge in graph.edges:
        stored = tx.get(EDGES, edge_key(edge))
        if stored is not None and ends_of(stored) != ends_of(edge):
            return GraphRefused(found, edge=stored)
    return None


def _write(tx: Transaction, graph: NewGraph, flow: Flow, *, is_first: bool) -> Flow:
    new = [member for member in graph.members if tx.record(member.execution_id) is None]
    edges = [edge for edge in graph.edges if tx.get(EDGES, edge_key(edge)) is None]
    _write_edges(tx, graph, edges)
    stored = tx.flow(flow.flow_id) or flow
    _write_header(tx, graph, grown(stored, members=len(new), edges=len(edges)))
    for member in new:
        insert(tx, member)
    _settle(tx, flow.flow_id, edges)
    if not is_first:
        cancel_late_siblings(tx, flow.flow_id, [member.execution_id for member in new])
    finish_flow(tx, flow.flow_id)
    return tx.flow(flow.flow_id) or flow


def _write_header(tx: Transaction, graph: NewGraph, flow: Flow) -> None:
    if flow.incomplete and graph.is_last:
        flow = _replace(flow, incomplete=False, submit_until=0)
    elif flow.incomplete:
        flow = _replace(flow, submit_until=tx.now + ABANDONED_AFTER_MS)
    keep_flow(tx, flow)


def _write_edges(tx: Transaction, graph: NewGraph, edges: Sequence[Edge]) -> None:
    """Edges of a member with very many of them may come in several chunks: its group counts the
    missing ones as staged, and one by one they become edges that count."""
    grown_later = Counter(edge.target for edge in edges if tx.group(edge.target) is not None)
    for group in graph.groups:
        if tx.group(group.target) is None:
            tx.put_group(group)
    for target, count in grown_later.items():
        known = tx.group(target)
        if known is not None:
            tx.put_group(_replace(known, n=known.n + count, staged=max(0, known.staged - count)))
    for edge in edges:
        tx.put_edge(edge)


def _settle(tx: Transaction, flow_id: str, edges: Sequence[Edge]) -> None:
    """A source may have ended in an earlier chunk, by an operator's hand."""
    ended = []
    for edge in edges:
        source = tx.record(edge.source)
        if source is not None and source.state in FINAL:
            ended.append(edge)
    if ended:
        settle_edges(tx, flow_id, ended)


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


def read_flows(tx: Transaction, ids: Sequence[str]) -> list[Flow | None]:
    return [tx.flow(flow_id) for flow_id in ids]


def flows_in(tx: Transaction, partition: int, after: str, limit: int) -> list[Flow]:
    return tx.tables.flows_in(partition, after, limit)


def flows_by_age(
    tx: Transaction, after: tuple[int, str] | None, limit: int, *, newest: bool = True
) -> list[Flow]:
    return tx.tables.flows_by_age(after, limit, newest=newest)


def read_members(tx: Transaction, query: MemberQuery) -> list[MemberPlace]:
    """Only of those whose public state does not follow from their state is the record read."""
    if query.parent_id:
        return _children(tx, query)
    found = places_of(tx.tables, query.flow_id, query.states, query.after, query.limit)
    tx.fetch(RECORDS, [execution_id for _, execution_id, state in found if state == "blocked"])
    return [
        MemberPlace(created_at, execution_id, public_state(state, _reason(tx, execution_id, state)))
        for created_at, execution_id, state in found
    ]


def _children(tx: Transaction, query: MemberQuery) -> list[MemberPlace]:
    pages = [
        tx.tables.view("children", (query.parent_id, tied), query.after, query.limit)
        for tied in (1, 0)
    ]
    return [
        MemberPlace(one.created_at, one.execution_id, public_state(one.state, one.reason))
        for one in islice(merge(*pages, key=_place), query.limit)
        if one.flow_id == query.flow_id
    ]


def _place(record: Record) -> tuple[int, str]:
    return record.created_at, record.execution_id


def _reason(tx: Transaction, execution_id: str, state: str) -> str:
    record = tx.record(execution_id) if state == "blocked" else None
    return record.reason if record is not None else ""


def read_edges(tx: Transaction, queries: Sequence[EdgeQuery]) -> list[tuple[Edge, ...]]:
    return [tuple(_edges(tx, query)) for query in queries]


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
    """All edges of a member belong to one flow; in another flow it has none."""
    return edges if edges and edges[0].flow_id == query.flow_id else []


def read_groups(tx: Transaction, targets: Sequence[str]) -> list[Group | None]:
    tx.fetch(GROUPS, targets)
    return [tx.group(target) for target in targets]


def places_of(
    tables: Tables,
    flow_id: str,
    states: Collection[State],
    after: tuple[int, str] | None,
    limit: int,
) -> list[Place]:
    """Members behind a place, without reading any of them."""
    pages = [
        [
            (int(created_at), str(execution_id), state)
            for created_at, execution_id in tables.view_places(
                "flow", (flow_id, state), after, limit
            )
        ]
        for state in states or STATES
    ]
    return list(islice(merge(*pages), limit))


def members_of(tables: Tables, flow_id: str) -> Iterator[Record]:
    """Every member, in no particular order."""
    for state in sorted(STATES):
        after: tuple[int, str] | None = None
        while records := tables.view("flow", (flow_id, state), after, _PAGE):
            yield from records
            after = (records[-1].created_at, records[-1].execution_id)


def is_flow_among(tx: Transaction, flow_id: str, partitions: Container[int]) -> bool:
    """Whether the flow lives in one of these partitions. One that does not say lives where its
    members are, and without members counts for everybody: rather twice than never."""
    flow = tx.flow(flow_id)
    if flow is not None and flow.partition >= 0:
        return flow.partition in partitions
    members = places_of(tx.tables, flow_id, (), None, 1)
    return not members or partition_of(members[0][1]) in partitions
