"""Mechanism `purge`: delete what is past its retention, each execution whole and its record last;
and rows of limits whose time is over."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final

import msgspec

from flowfabric.backend.reference import feed
from flowfabric.backend.reference.limit_tables import (
    ATTACHED,
    ENTRIES,
    GATE_ENDS,
    GATES,
    LEDGERS,
    MARK_ENDS,
    SLOTS,
    WAITER_ENDS,
)
from flowfabric.backend.reference.presence import ends_at
from flowfabric.backend.reference.tables import (
    EDGES,
    FAIRNESS,
    FLOWS,
    GROUPS,
    OWNED,
    RECORDS,
    WORKERS,
    Order,
    Table,
)
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.core.duty_filter import EVERYBODY, DutyFilter
from flowfabric.core.graph import edge_key
from flowfabric.core.ids import partition_of
from flowfabric.core.limits.gates import Gate
from flowfabric.core.new_execution import rank_shift_of
from flowfabric.core.record import Record
from flowfabric.core.retention import (
    LOG_LIMITS,
    LogLimits,
    count_purged,
    flow_purge_at,
    is_forgotten,
    judge_purge,
    put_off,
)
from flowfabric.core.transition import Transition

# What one call looks at or drops at most, of each kind of thing.
MOST_LOOKS: Final = 10_000
MOST_ROWS: Final = 20_000
_PAGE: Final = 500
_MOST_GATES: Final = 1_000
# The rows of so many executions are dropped together: few, because they may be very many.
_EXECUTIONS_AT_ONCE: Final = 16
_EDGES_AT_ONCE: Final = 1_000
# What goes with an execution: what it owns, and what it spent.
_WITH_IT: Final[tuple[Table[Any, Any], ...]] = (*OWNED, LEDGERS)
_ENDS: Final[tuple[Order[Any, Any], ...]] = (MARK_ENDS, WAITER_ENDS)


class PurgeOrder(msgspec.Struct, frozen=True):
    """How many executions to purge, of which partitions (all, if none is named) and whose, and how
    much of the log to keep."""

    limit: int
    partitions: frozenset[int] = frozenset()
    only: DutyFilter = EVERYBODY
    log: LogLimits = LOG_LIMITS


def start_purge(tx: Transaction, orders: Sequence[PurgeOrder]) -> Callable[[PurgeOrder], int]:
    # What is past its retention is found in views.
    tx.flush()

    def purge(order: PurgeOrder) -> int:
        purged = _purge_executions(tx, order)
        # A flow whose last member went just now is found by this.
        tx.flush()
        _purge_flows(tx, order)
        tx.tables.drop_expired_keys(tx.now, MOST_LOOKS)
        feed.trim(tx, order.log.keep_ms, order.log.keep)
        _drop(tx, WORKERS, lambda worker: ends_at(worker) <= tx.now)
        _drop(tx, FAIRNESS, lambda last: not rank_shift_of(last, tx.now))
        _drop_ended(tx)
        return purged

    return purge


def _purge_executions(tx: Transaction, order: PurgeOrder) -> int:
    """Fewer than asked for when they own very much: the next call goes on."""
    purged = rows = 0
    over = _over(tx, order)
    while rows < MOST_ROWS and (
        batch := list(islice(over, min(_EXECUTIONS_AT_ONCE, order.limit - purged)))
    ):
        rows += _purge(tx, batch)
        purged += len(batch)
    return purged


def _over(tx: Transaction, order: PurgeOrder) -> Iterator[Record]:
    """The executions that go now."""
    for record in _past_retention(tx):
        if order.partitions and partition_of(record.execution_id) not in order.partitions:
            continue
        if not order.only.matches(record.namespace, record.tags):
            continue
        flow = tx.flow(record.flow_id) if record.flow_id else None
        parent = tx.record(record.parent_id) if record.parent_id else None
        forgotten = is_forgotten(record, parent)
        if judge_purge(record, flow, tx.now, is_forgotten=forgotten) == "put off":
            tx.write(Transition(record, put_off(record, tx.now)))
        else:
            yield record


def _past_retention(tx: Transaction) -> Iterator[Record]:
    after: tuple[int, str] | None = None
    for _ in range(MOST_LOOKS // _PAGE):
        records = tx.tables.view("final", (), after, _PAGE)
        tx.notice(records)
        for record in records:
            if judge_purge(record, None, tx.now) == "kept":
                return
            yield record
        if len(records) < _PAGE:
            return
        after = (records[-1].purge_at, records[-1].execution_id)


def _purge(tx: Transaction, records: Sequence[Record]) -> int:
    """Drop executions; how many rows went with them. Their idempotency keys stay until their own
    windows end, and edges stay with the flow."""
    rows = tx.tables.drop_under(_WITH_IT, [record.execution_id for record in records])
    for record in records:
        own = record.execution_id
        flow = tx.flow(record.flow_id) if record.flow_id else None
        if record.flow_id:
            tx.put(GROUPS, own, None)
        if flow is not None:
            tx.put_flow(count_purged(flow, tx.now))
        for budget_id in record.budget_ids:
            tx.put(ATTACHED, (budget_id, own), None)
        tx.put(RECORDS, own, None)
    # What is dropped stays dropped if a later one fails, so its owner must be gone, too.
    tx.flush()
    return rows


def _purge_flows(tx: Transaction, order: PurgeOrder) -> None:
    """Flows whose members are gone, and with them what named the partition. One with many edges
    goes over several calls, itself last."""
    looks = MOST_LOOKS if order.only.is_set else order.limit
    found = tx.tables.purgeable_flows(tx.now, looks)
    own = (flow for flow in found if order.only.matches(flow.namespace, flow.tags))
    for flow in islice(own, order.limit):
        edges = tx.tables.flow_edges(flow.flow_id, "", _EDGES_AT_ONCE)
        for edge in edges:
            tx.put(EDGES, edge_key(edge), None)
        if len(edges) < _EDGES_AT_ONCE:
            tx.put(FLOWS, flow.flow_id, None)


def start_purge_flows(tx: Transaction, flow_ids: Sequence[str]) -> Callable[[str], bool]:
    """The same for flows that were found to be past their retention, in a store that drops the
    edges of a flow together with it."""
    tx.fetch(FLOWS, flow_ids)

    def purge(flow_id: str) -> bool:
        flow = tx.flow(flow_id)
        is_over = flow is not None and 0 < flow_purge_at(flow) <= tx.now
        if is_over:
            tx.put(FLOWS, flow_id, None)
        return is_over

    return purge


def _drop(tx: Transaction, table: Table[Any, Any], is_over: Callable[[Any], bool]) -> None:
    """Drop rows that mean nothing any more from a table that stays small."""
    for key, value in tx.tables.scan(table, None, MOST_LOOKS):
        if is_over(value):
            tx.put(table, key, None)


def _drop_ended(tx: Transaction) -> None:
    """Marks and waiters whose time is over, and the rows of gates at which everything has ended.

    A gate that is still used drops its own as it counts.
    """
    for order in _ENDS:
        for place in tx.tables.places(order, (), None, tx.now, MOST_LOOKS):
            tx.put(order.table, order.key((), place), None)
    for name, gate in tx.tables.ordered(GATE_ENDS, (), None, tx.now, _MOST_GATES):
        for table in (SLOTS, ENTRIES):
            tx.drop_range(table, name)
        tx.put(GATES, name, Gate(quota=gate.quota) if gate.quota else None)
