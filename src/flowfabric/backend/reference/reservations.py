"""Mechanisms `reserve`, `commit` and `cancel`: amounts set aside before they are spent."""

from collections.abc import Callable, Sequence

import msgspec

from flowfabric.backend.reference.budgets import Budgets
from flowfabric.backend.reference.limit_tables import RESERVATIONS
from flowfabric.backend.reference.spends import count
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.core.limits.asks import (
    DEDUP_MS,
    AlreadyApplied,
    Cancel,
    Commit,
    Reservation,
    Reserve,
    Reserved,
    SpendAnswer,
    Spending,
)
from flowfabric.core.limits.budgets import (
    Chain,
    Hard,
    breached,
    check_dimensions,
    hold,
    refusal,
    unhold,
)


def start_reserve(
    tx: Transaction, items: Sequence[Reserve]
) -> Callable[[Reserve], Reserved | Hard | AlreadyApplied]:
    tx.flush()
    budgets = Budgets(tx, [item.budget_id for item in items])

    def reserve(item: Reserve) -> Reserved | Hard | AlreadyApplied:
        chain = budgets.needed(item.budget_id)
        key = (item.budget_id, item.reservation_id)
        if tx.get(RESERVATIONS, key) is not None:
            return AlreadyApplied()
        check_dimensions(chain[0], item.amounts)
        hard = refusal(chain, item.amounts)
        if hard is not None:
            budgets.put((breached(chain, hard, tx.now),))
            return hard
        until = tx.now + item.ttl_ms
        root_id = chain[-1].budget_id
        amounts = {name: amount for name, amount in item.amounts.items() if amount}
        stored = Reservation(
            root_id=root_id, amounts=amounts, until=until, execution_id=item.execution_id
        )
        tx.put(RESERVATIONS, key, stored)
        budgets.put(hold(chain, amounts, tx.now))
        budgets.remind(root_id, until)
        return Reserved(until)

    return reserve


def start_commit(tx: Transaction, items: Sequence[Commit]) -> Callable[[Commit], SpendAnswer]:
    tx.flush()
    budgets = Budgets(tx, [item.budget_id for item in items])

    def commit(item: Commit) -> SpendAnswer:
        """A hold that ended, or never was, sets nothing aside: what was spent still counts."""
        chain = budgets.needed(item.budget_id)
        key = (item.budget_id, item.reservation_id)
        found = tx.get(RESERVATIONS, key)
        if found is not None and found.state != "open":
            return AlreadyApplied()
        check_dimensions(chain[0], item.amounts)
        held = found.amounts if found else {}
        hard = refusal(chain, item.amounts, held)
        if hard is not None:
            budgets.put((breached(chain, hard, tx.now),))
            return hard
        finished = found or Reservation(root_id=chain[-1].budget_id, amounts={}, until=0)
        spending = count(budgets, _freed(budgets, chain, held), item.amounts, finished.execution_id)
        _finish(budgets, key, msgspec.structs.replace(finished, state="committed"))
        return spending

    return commit


def start_cancel(
    tx: Transaction, items: Sequence[Cancel]
) -> Callable[[Cancel], Spending | AlreadyApplied]:
    tx.flush()
    budgets = Budgets(tx, [item.budget_id for item in items])

    def cancel(item: Cancel) -> Spending | AlreadyApplied:
        chain = budgets.needed(item.budget_id)
        key = (item.budget_id, item.reservation_id)
        found = tx.get(RESERVATIONS, key)
        if found is None or found.state != "open":
            return AlreadyApplied()
        _freed(budgets, chain, found.amounts)
        _finish(budgets, key, msgspec.structs.replace(found, state="cancelled"))
        return Spending()

    return cancel


def _freed(budgets: Budgets, chain: Chain, amounts: dict[str, int]) -> Chain:
    if not amounts:
        return chain
    after = unhold(chain, amounts, budgets.tx.now)
    budgets.put(after)
    return after


def _finish(budgets: Budgets, key: tuple[str, str], finished: Reservation) -> None:
    """Keep the hold for a day as a mark: its amounts are no longer set aside."""
    until = budgets.tx.now + DEDUP_MS
    budgets.tx.put(RESERVATIONS, key, msgspec.structs.replace(finished, amounts={}, until=until))
    budgets.remind(finished.root_id, until)
