"""Mechanism `create`: insert if absent, with the idempotency key, the flow and the queue place."""

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from flowfabric.backend.reference.tables import (
    BLOBS,
    EDGES,
    FAIRNESS,
    FLOWS,
    KEYS,
    RECORDS,
    KeyEntry,
)
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.types import CreateAnswer, Created, Duplicate, FlowRefused, GraphCreated
from flowfabric.core.birth import Birth, GraphBirth, born, rank_shift_of
from flowfabric.core.graph import Flow
from flowfabric.core.ids import partition_of
from flowfabric.core.members import finish_flow, move_member
from flowfabric.core.record import Record
from flowfabric.core.settle import settle_edges
from flowfabric.core.step import Step

_replace = msgspec.structs.replace


def start_create(tx: Transaction, items: Sequence[Birth]) -> Callable[[Birth], CreateAnswer]:
    tx.fetch(RECORDS, [item.record.execution_id for item in items])
    keys = [_scope(item) for item in items if item.record.idempotency_key]
    if keys:
        tx.fetch(KEYS, keys)
    return partial(create, tx)


def start_create_graph(
    tx: Transaction, items: Sequence[GraphBirth]
) -> Callable[[GraphBirth], GraphCreated]:
    members = [birth.record.execution_id for graph in items for birth in graph.members]
    tx.fetch(RECORDS, members)
    tx.fetch(EDGES, [edge.edge_id for graph in items for edge in graph.edges])
    return partial(create_graph, tx)


def _scope(birth: Birth) -> tuple[str, str]:
    record = birth.record
    scope = f"flow:{record.flow_id}" if record.flow_id else f"namespace:{record.namespace}"
    return scope, record.idempotency_key


def create(tx: Transaction, birth: Birth) -> CreateAnswer:
    record = birth.record
    if record.idempotency_key:
        known = tx.get(KEYS, _scope(birth))
        if known is not None and known.expires_at > tx.now:
            return Duplicate(known.execution_id)
    if tx.record(record.execution_id) is not None:
        return Duplicate(record.execution_id)
    if record.flow_id:
        flow = tx.flow(record.flow_id)
        if flow is None or flow.cancelled_at:
            return FlowRefused(flow)
        _grow(tx, flow, 1)
    return Created(_insert(tx, birth))


def _insert(tx: Transaction, birth: Birth) -> Record:
    record = born(birth, tx.now, _shift(tx, birth.record))
    done = Step(None, record)
    tx.write(done)
    if birth.input:
        tx.insert(BLOBS, (record.execution_id, "input"), birth.input)
    if record.idempotency_key and birth.dedup_window_ms > 0:
        entry = KeyEntry(record.execution_id, tx.now + birth.dedup_window_ms)
        tx.put(KEYS, _scope(birth), entry)
    if record.flow_id:
        move_member(tx, done)
    return record


def _shift(tx: Transaction, record: Record) -> int:
    if not record.fairness_key:
        return 0
    part = partition_of(record.execution_id)
    key = (part, record.namespace, record.lane, record.fairness_key)
    shift = rank_shift_of(tx.get(FAIRNESS, key) or 0, tx.now)
    tx.put(FAIRNESS, key, tx.now + shift)
    return shift


def _grow(tx: Transaction, flow: Flow, members: int, edges: int = 0) -> None:
    tx.put_flow(
        _replace(
            flow,
            node_count=flow.node_count + members,
            edge_count=flow.edge_count + edges,
            graph_revision=flow.graph_revision + members + edges,
            version=flow.version + 1,
            changed_at=tx.now,
        )
    )


def create_graph(tx: Transaction, graph: GraphBirth) -> GraphCreated:
    """Write a graph or a chunk of one, leaving alone what is there already."""
    flow_id = graph.flow.flow_id
    found = tx.flow(flow_id)
    if found is None:
        header = _replace(graph.flow, created_at=tx.now, changed_at=tx.now)
        tx.insert(FLOWS, flow_id, header)
    new = [birth for birth in graph.members if tx.record(birth.record.execution_id) is None]
    edges = [edge for edge in graph.edges if tx.get(EDGES, edge.edge_id) is None]
    for edge in edges:
        tx.put_edge(edge)
    for group in graph.groups:
        if tx.group(group.target) is None:
            tx.put_group(group)
    _grow(tx, tx.flow(flow_id) or graph.flow, len(new), len(edges))
    for birth in new:
        _insert(tx, birth)
    settle_edges(tx, flow_id, edges, successes_only=False)
    flow = tx.flow(flow_id) or graph.flow
    if flow.incomplete and graph.is_last:
        tx.put_flow(_replace(flow, incomplete=False, due_at=0))
        finish_flow(tx, flow_id)
    return GraphCreated(tx.flow(flow_id) or graph.flow, found is None)
