"""Mechanism `create`: insert if absent, with the idempotency key, the flow and the queue place."""

from collections.abc import Callable, Sequence
from functools import partial

from flowfabric.backend.reference.limit_tables import ATTACHED
from flowfabric.backend.reference.tables import BLOBS, FAIRNESS, KEYS, RECORDS, KeyEntry
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.types import CreateAnswer, Created, Duplicate
from flowfabric.core.birth import Birth, born, rank_shift_of
from flowfabric.core.flow_plan import FlowRefused
from flowfabric.core.graph import grown
from flowfabric.core.ids import partition_of
from flowfabric.core.members import keep_flow, move_member
from flowfabric.core.record import Record
from flowfabric.core.step import Step


def start_create(tx: Transaction, items: Sequence[Birth]) -> Callable[[Birth], CreateAnswer]:
    tx.fetch(RECORDS, [item.execution_id for item in items])
    keys = [_scope(item) for item in items if item.record.idempotency_key]
    if keys:
        tx.fetch(KEYS, keys)
    return partial(create, tx)


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
    if tx.record(birth.execution_id) is not None:
        return Duplicate(birth.execution_id)
    if record.flow_id:
        flow = tx.flow(record.flow_id)
        if flow is None or flow.cancelled_at or flow.namespace != record.namespace:
            return FlowRefused(flow)
        keep_flow(tx, grown(flow, members=1))
    created = insert(tx, birth)
    return Created(created.execution_id, created.state, created.reason)


def insert(tx: Transaction, birth: Birth) -> Record:
    """Write a new execution; its flow, if it has one, must be there already."""
    record = born(birth, tx.now, _shift(tx, birth))
    done = Step(None, record)
    tx.write(done)
    if birth.input:
        tx.insert(BLOBS, (record.execution_id, "input"), birth.input)
    if record.idempotency_key and birth.dedup_window_ms > 0:
        entry = KeyEntry(record.execution_id, tx.now + birth.dedup_window_ms)
        tx.put(KEYS, _scope(birth), entry)
    for budget_id in record.budget_ids:
        tx.put(ATTACHED, (budget_id, record.execution_id), tx.now)
    if record.flow_id:
        move_member(tx, done)
    return record


def _shift(tx: Transaction, birth: Birth) -> int:
    record = birth.record
    if not record.fairness_key:
        return 0
    part = partition_of(birth.execution_id)
    key = (part, record.namespace, record.lane, record.fairness_key)
    shift = rank_shift_of(tx.get(FAIRNESS, key) or 0, tx.now)
    tx.put(FAIRNESS, key, tx.now + shift)
    return shift
