"""Mechanism `create`: insert if absent, with the idempotency key, the flow and the queue place."""

from collections.abc import Callable, Sequence
from functools import partial

from flowfabric.backend.reference.limit_tables import ATTACHED
from flowfabric.backend.reference.tables import BLOBS, FAIRNESS, KEYS, RECORDS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.types import CreateAnswer, Created, Duplicate
from flowfabric.core.checks import explain_create
from flowfabric.core.graph import grown
from flowfabric.core.ids import partition_of
from flowfabric.core.members import keep_flow, move_member
from flowfabric.core.new_execution import (
    NewExecution,
    initial_record,
    known_execution,
    new_entry,
    rank_shift_of,
    scoped_key,
)
from flowfabric.core.plan import FlowRefused
from flowfabric.core.record import Record
from flowfabric.core.transition import Transition


def start_create(
    tx: Transaction, items: Sequence[NewExecution]
) -> Callable[[NewExecution], CreateAnswer]:
    tx.fetch(RECORDS, [item.execution_id for item in items])
    keys = [scoped_key(item.record) for item in items if item.record.idempotency_key]
    if keys:
        tx.fetch(KEYS, keys)
    return partial(create, tx)


def create(tx: Transaction, new: NewExecution) -> CreateAnswer:
    record = new.record
    if record.idempotency_key:
        known = known_execution(tx.get(KEYS, scoped_key(record)), tx.now)
        if known:
            return Duplicate(known)
    if tx.record(new.execution_id) is not None:
        return Duplicate(new.execution_id)
    if record.flow_id:
        flow = tx.flow(record.flow_id)
        parent = tx.record(record.parent_id) if record.parent_id else None
        if flow is None or explain_create(record, flow, parent) is not None:
            return FlowRefused(flow, parent)
        keep_flow(tx, grown(flow, members=1))
    created = insert(tx, new)
    return Created(created.execution_id, created.state, created.reason)


def insert(tx: Transaction, new: NewExecution) -> Record:
    """Write a new execution; its flow, if it has one, must be there already."""
    record = initial_record(new, tx.now, _shift(tx, new))
    done = Transition(None, record)
    tx.write(done)
    if new.input:
        tx.insert(BLOBS, (record.execution_id, "input"), new.input)
    entry = new_entry(new, tx.now)
    if entry is not None:
        tx.put(KEYS, scoped_key(record), entry)
    for budget_id in record.budget_ids:
        tx.put(ATTACHED, (budget_id, record.execution_id), tx.now)
    if record.flow_id:
        move_member(tx, done)
    return record


def _shift(tx: Transaction, new: NewExecution) -> int:
    record = new.record
    if not record.fairness_key:
        return 0
    part = partition_of(new.execution_id)
    key = (part, record.namespace, record.lane, record.fairness_key)
    shift = rank_shift_of(tx.get(FAIRNESS, key) or 0, tx.now)
    tx.put(FAIRNESS, key, tx.now + shift)
    return shift
