"""Mechanisms `spend`, `release` and `reset`: counting against budgets, and taking it back."""

from collections.abc import Callable, Sequence

import msgspec

from flowfabric.backend.reference.budgets import Budgets
from flowfabric.backend.reference.limit_tables import LEDGERS, MARKS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.waiters import admissible_at_budgets
from flowfabric.core.events import LogEntry
from flowfabric.core.limits.asks import (
    DEDUP_MS,
    AlreadyApplied,
    Freed,
    Release,
    Reset,
    Spend,
    SpendAnswer,
    Spending,
)
from flowfabric.core.limits.budgets import (
    Amounts,
    Budget,
    Chain,
    Soft,
    Spent,
    breached,
    check_dimensions,
    refusal,
    reset,
    reset_if_due,
    spend,
)
from flowfabric.core.limits.ledgers import entered, taken_back


def start_spend(tx: Transaction, items: Sequence[Spend]) -> Callable[[Spend], SpendAnswer]:
    # Ended holds and waiters are found through orders.
    tx.flush()
    budgets = Budgets(tx, [item.budget_id for item in items])

    def spend_one(item: Spend) -> SpendAnswer:
        mark = (item.budget_id, item.dedup_key)
        if item.dedup_key and (tx.get(MARKS, mark) or 0) > tx.now:
            return AlreadyApplied()
        chain = budgets.needed(item.budget_id)
        check_dimensions(chain[0], item.amounts)
        hard = refusal(chain, item.amounts)
        if hard is not None:
            budgets.put((breached(chain, hard, tx.now),))
            return hard
        if item.dedup_key:
            tx.put(MARKS, mark, tx.now + DEDUP_MS)
        return count(budgets, chain, item.amounts, item.execution_id)

    return spend_one


def count(budgets: Budgets, chain: Chain, amounts: Amounts, execution_id: str) -> Spending:
    """Add what no level refused, with all that follows: ledger, counters, warnings."""
    tx = budgets.tx
    spent = spend(chain, amounts, tx.now)
    budgets.put(spent.chain)
    if execution_id:
        key = (execution_id, chain[0].budget_id)
        tx.put(LEDGERS, key, entered(tx.get(LEDGERS, key), chain, amounts))
    _warn(tx, spent, execution_id)
    return Spending(spent.softs)


def _warn(tx: Transaction, spent: Spent, execution_id: str) -> None:
    levels = {level.budget_id: level for level in spent.chain}
    for soft in spent.softs:
        if soft.warns:
            tx.log(_warning(soft, levels[soft.budget_id], execution_id, tx.now))


def _warning(soft: Soft, budget: Budget, execution_id: str, now: int) -> LogEntry:
    return LogEntry(
        at=now,
        execution_id=execution_id,
        namespace=budget.namespace,
        kind="budget_soft_breach",
        families=("operator",),
        details={
            "budget_id": soft.budget_id,
            "dimension": soft.dimension,
            "current_usage": str(soft.used),
            "soft_limit": str(soft.limit),
        },
    )


def start_release(tx: Transaction, items: Sequence[Release]) -> Callable[[Release], Freed]:
    tx.flush()
    budgets = Budgets(tx, [item.budget_id for item in items])

    def release(item: Release) -> Freed:
        chain = budgets.needed(item.budget_id)
        key = (item.execution_id, item.budget_id)
        ledger = tx.get(LEDGERS, key)
        if ledger is None:
            return Freed()
        lowered = taken_back(chain, ledger, tx.now)
        budgets.put(lowered)
        tx.put(LEDGERS, key, None)
        return Freed(admissible_at_budgets(tx, lowered))

    return release


def start_reset(tx: Transaction, items: Sequence[Reset]) -> Callable[[Reset], Freed]:
    tx.flush()
    budgets = Budgets(tx, [item.budget_id for item in items])

    def reset_one(item: Reset) -> Freed:
        budget = budgets.needed(item.budget_id)[0]
        after = reset_if_due(budget, tx.now) if item.only_if_due else reset(budget, tx.now)
        # The timer of a root also stands for the holds of its tree, which were just looked at.
        if budget.holds_end_at:
            end = budgets.next_end(budget.budget_id)
            budgets.put((msgspec.structs.replace(after or budget, holds_end_at=end),))
        elif after is not None:
            budgets.put((after,))
        if after is None:
            return Freed(is_done=False, next_reset_at=budget.next_reset_at)
        return Freed(admissible_at_budgets(tx, (after,)), next_reset_at=after.next_reset_at)

    return reset_one
