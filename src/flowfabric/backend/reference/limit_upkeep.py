"""Rows about limits that mean nothing any more: found by their end, never searched for."""

from typing import Any, Final

from flowfabric.backend.reference.limit_tables import (
    ATTACHED,
    ENTRIES,
    GATE_ENDS,
    GATES,
    LEDGERS,
    MARK_ENDS,
    MARKS,
    SLOTS,
    WAITER_ENDS,
    WAITERS,
)
from flowfabric.backend.reference.tables import Order, Table
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.core.limits.gates import Gate
from flowfabric.core.record import Record

# What one call drops at most, of each kind.
MOST_DROPPED: Final = 10_000
_MOST_GATES: Final = 1_000
_PAGE: Final = 1_000


def forget_spending(tx: Transaction, record: Record) -> None:
    """What a purged execution leaves at budgets: its ledgers, and that it was attached."""
    for key, _ in tx.tables.range(LEDGERS, (record.execution_id,), None, MOST_DROPPED):
        tx.put(LEDGERS, key, None)
    for budget_id in record.budget_ids:
        tx.put(ATTACHED, (budget_id, record.execution_id), None)


def drop_ended(tx: Transaction) -> None:
    """Marks and waiters whose time is over, and the rows of gates at which everything has ended.

    A gate that is still used drops its own as it counts.
    """
    _drop(tx, MARK_ENDS, MARKS)
    _drop(tx, WAITER_ENDS, WAITERS)
    for name, gate in tx.tables.ordered(GATE_ENDS, (), None, tx.now, _MOST_GATES):
        for table in (SLOTS, ENTRIES):
            _drop_under(tx, table, name)
        tx.put(GATES, name, Gate(quota=gate.quota) if gate.quota else None)


def _drop(tx: Transaction, order: Order[Any, Any], table: Table[Any, Any]) -> None:
    for place in tx.tables.places(order, (), None, tx.now, MOST_DROPPED):
        tx.put(table, order.key((), place), None)


def _drop_under(tx: Transaction, table: Table[Any, Any], name: str) -> None:
    after: Any = None
    while rows := tx.tables.range(table, (name,), after, _PAGE):
        for key, _ in rows:
            tx.put(table, key, None)
        after = rows[-1][0]
