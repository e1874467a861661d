"""Who waits at a limit: listed by rank when turned away, and taken off when there is room again."""

from flowfabric.backend.reference.limit_tables import GATES, WAITER_RANKS, WAITERS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.core.limits.budgets import Chain, closed
from flowfabric.core.limits.gates import (
    MOST_ADMISSIBLE,
    MOST_LOOKS,
    Admissible,
    Waiter,
    admissible,
    budget_list,
    choose,
)


def list_waiter(tx: Transaction, limit: str, execution_id: str, waiter: Waiter) -> None:
    tx.put(WAITERS, (limit, execution_id), waiter)


def unlist(tx: Transaction, limit: str, execution_id: str) -> None:
    key = (limit, execution_id)
    if tx.get(WAITERS, key) is not None:
        tx.put(WAITERS, key, None)


def admissible_at_gate(tx: Transaction, name: str) -> tuple[Admissible, ...]:
    """The best waiters of a gate that fit in now; they are taken off its list."""
    gate = tx.get(GATES, name)
    if gate is None:
        return ()
    rows = tx.ordered(WAITER_RANKS, (name,), None, None, MOST_LOOKS)
    waiting = [(execution_id, waiter) for (_, execution_id), waiter in rows]
    fitting, gone = choose(gate, waiting, tx.now)
    for execution_id in gone:
        tx.put(WAITERS, (name, execution_id), None)
    return _take_off(tx, name, fitting[:MOST_ADMISSIBLE])


def admissible_at_budgets(tx: Transaction, chain: Chain) -> tuple[Admissible, ...]:
    """The best waiters of every level of a chain that is open now, a hundred of them together."""
    found: list[Admissible] = []
    for level in chain:
        if closed((level,)) is None and len(found) < MOST_ADMISSIBLE:
            found += _admissible_at_budget(tx, level.budget_id, MOST_ADMISSIBLE - len(found))
    return tuple(found)


def _admissible_at_budget(tx: Transaction, budget_id: str, most: int) -> tuple[Admissible, ...]:
    name = budget_list(budget_id)
    rows = tx.ordered(WAITER_RANKS, (name,), None, None, most)
    return _take_off(tx, name, [(execution_id, waiter) for (_, execution_id), waiter in rows])


def _take_off(
    tx: Transaction, name: str, waiting: list[tuple[str, Waiter]]
) -> tuple[Admissible, ...]:
    for execution_id, _ in waiting:
        tx.put(WAITERS, (name, execution_id), None)
    return tuple(
        admissible(name, execution_id, waiter)
        for execution_id, waiter in waiting
        if waiter.until > tx.now
    )
