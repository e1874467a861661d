"""Mechanism `create_graph`: a whole graph in one step, or one chunk of a large one."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from flowfabric.backend.flow_store import GraphCreated, GraphRefused
from flowfabric.backend.reference.creation import insert
from flowfabric.backend.reference.tables import EDGES, FLOWS, GROUPS, RECORDS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.core.graph import Edge, Flow, edge_key, ends_of, grown, has_work
from flowfabric.core.graph_chunks import ABANDONED_AFTER_MS
from flowfabric.core.members import finish_flow, keep_flow
from flowfabric.core.new_execution import NewExecution, NewGraph
from flowfabric.core.settle import cancel_late_siblings, settle_edges
from flowfabric.core.states import FINAL

_replace = msgspec.structs.replace


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
    _write_header(
        tx, graph, grown(tx.flow(flow.flow_id) or flow, members=len(new), edges=len(edges))
    )
    for member in new:
        insert(tx, member)
    _settle(tx, flow.flow_id, edges)
    if not is_first:
        cancel_late_siblings(tx, flow.flow_id, _ids(new))
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


def _ids(members: Sequence[NewExecution]) -> list[str]:
    return [member.execution_id for member in members]
