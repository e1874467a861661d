"""Mechanisms on budgets: `spend`, `release`, `reset`, and `reserve`, `commit`, `cancel` of amounts
that are set aside before they are spent."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from flowfabric.backend.reference.gates import admissible_at_budgets
from flowfabric.backend.reference.limit_tables import (
    ATTACHED,
    BUDGETS,
    LEDGERS,
    MARKS,
    RESERVATION_ENDS,
    RESERVATIONS,
)
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.work import Start
from flowfabric.core.events import LogEntry
from flowfabric.core.limits.asks import (
    DEDUP_MS,
    AlreadyApplied,
    Cancel,
    Commit,
    Freed,
    Release,
    Reservation,
    Reserve,
    Reserved,
    Reset,
    Spend,
    SpendAnswer,
    Spending,
)
from flowfabric.core.limits.budgets import (
    Amounts,
    Budget,
    Chain,
    Hard,
    Soft,
    ancestor_missing,
    breached,
    check_dimensions,
    entered,
    free,
    refusal,
    reset,
    reset_if_due,
    set_aside,
    spend,
    taken_back,
)
from flowfabric.core.limits.gates import MOST_ENDED
from flowfabric.errors import BudgetNotFound

I = TypeVar("I", Spend, Release, Reset, Reserve, Commit, Cancel)  # noqa: E741
A = TypeVar("A")

_replace = msgspec.structs.replace


class Budgets:
    """A batch has one now, so what ended by then is dropped once per tree, before its first item:
    an item that fails takes back only its own writes."""

    def __init__(self, tx: Transaction, ids: Iterable[str]) -> None:
        self.tx = tx
        self._trimmed: set[str] = set()
        tx.item_each(ids, self._trim)

    def chain(self, budget_id: str) -> Chain:
        """The budget and its ancestors, leaf first; empty when there is no such budget."""
        budget = self.tx.get(BUDGETS, budget_id)
        if budget is None:
            return ()
        return (budget, *(self._ancestor(budget, name) for name in budget.ancestors))

    def needed(self, budget_id: str) -> Chain:
        chain = self.chain(budget_id)
        if not chain:
            raise BudgetNotFound(budget_id)
        return chain

    def refused(self, chain: Chain, amounts: Amounts, held: Amounts | None = None) -> Hard | None:
        """The limit that these amounts, in place of what is held, would pass; it is noted there."""
        check_dimensions(chain[0], amounts)
        hard = refusal(chain, amounts, held)
        if hard is not None:
            self.put((breached(chain, hard, self.tx.now),))
        return hard

    def put(self, levels: Chain) -> None:
        for level in levels:
            self.tx.put(BUDGETS, level.budget_id, level)

    def next_end(self, root_id: str) -> int:
        """When the next reservation of a tree ends, as of the last flush; 0 when there is none."""
        rows = self.tx.ordered(RESERVATION_ENDS, (root_id,), None, None, 1)
        return rows[0][1].until if rows else 0

    def remind(self, root_id: str, until: int) -> None:
        """Have the tree looked at when one of its reservations ends."""
        root = self.tx.get(BUDGETS, root_id)
        if root is not None and not 0 < root.reservations_end_at <= until:
            self.put((_replace(root, reservations_end_at=until),))

    def _ancestor(self, budget: Budget, name: str) -> Budget:
        found = self.tx.get(BUDGETS, name)
        if found is None:
            raise ancestor_missing(budget.budget_id, name)
        return found

    def _trim(self, budget_id: str) -> None:
        chain, tx = self.chain(budget_id), self.tx
        if not chain or chain[-1].budget_id in self._trimmed:
            return
        root_id = chain[-1].budget_id
        for key, ended in tx.ordered(RESERVATION_ENDS, (root_id,), None, tx.now, MOST_ENDED):
            tx.put(RESERVATIONS, key, None)
            if ended.state == "open":
                self.put(free(self.chain(key[0]), ended.amounts, tx.now))
        self._trimmed.add(root_id)


def read_budgets(tx: Transaction, ids: Sequence[str]) -> list[Chain]:
    """Each budget with its ancestors, leaf first; empty for one that does not exist."""
    budgets = Budgets(tx, ids)
    return [budgets.chain(budget_id) for budget_id in ids]


def read_attached(tx: Transaction, budget_id: str, after: str, limit: int) -> list[str]:
    behind = (budget_id, after) if after else None
    rows = tx.tables.range(ATTACHED, (budget_id,), behind, limit)
    return [execution_id for (_, execution_id), _ in rows]


def _on_budgets(each: Callable[[Budgets, I], A]) -> Start[I, A]:
    """A mechanism that does its items one by one on the budgets of the batch."""

    def start(tx: Transaction, items: Sequence[I]) -> Callable[[I], A]:
        # Ended reservations and waiters are found through orders.
        tx.flush()
        return partial(each, Budgets(tx, [item.budget_id for item in items]))

    return start


def _spend(budgets: Budgets, item: Spend) -> SpendAnswer:
    tx, mark = budgets.tx, (item.budget_id, item.dedup_key)
    if item.dedup_key and (tx.get(MARKS, mark) or 0) > tx.now:
        return AlreadyApplied()
    chain = budgets.needed(item.budget_id)
    hard = budgets.refused(chain, item.amounts)
    if hard is not None:
        return hard
    if item.dedup_key:
        tx.put(MARKS, mark, tx.now + DEDUP_MS)
    return _count(budgets, chain, item.amounts, item.execution_id)


def _count(budgets: Budgets, chain: Chain, amounts: Amounts, execution_id: str) -> Spending:
    """Add what no level refused, with all that follows: ledger, counters, warnings."""
    tx = budgets.tx
    spent = spend(chain, amounts, tx.now)
    budgets.put(spent.chain)
    if execution_id:
        key = (execution_id, chain[0].budget_id)
        tx.put(LEDGERS, key, entered(tx.get(LEDGERS, key), chain, amounts))
    levels = {level.budget_id: level for level in spent.chain}
    for soft in spent.softs:
        if soft.warns:
            tx.log(_warning(soft, levels[soft.budget_id], execution_id, tx.now))
    return Spending(spent.softs)


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


def _release(budgets: Budgets, item: Release) -> Freed:
    tx, key = budgets.tx, (item.execution_id, item.budget_id)
    chain = budgets.needed(item.budget_id)
    ledger = tx.get(LEDGERS, key)
    if ledger is None:
        return Freed()
    lowered = taken_back(chain, ledger, tx.now)
    budgets.put(lowered)
    tx.put(LEDGERS, key, None)
    return Freed(admissible_at_budgets(tx, lowered))


def _reset(budgets: Budgets, item: Reset) -> Freed:
    tx = budgets.tx
    budget = budgets.needed(item.budget_id)[0]
    after = reset_if_due(budget, tx.now) if item.only_if_due else reset(budget, tx.now)
    # The timer of a root also stands for the reservations of its tree, which were just looked at.
    if budget.reservations_end_at:
        end = budgets.next_end(budget.budget_id)
        budgets.put((_replace(after or budget, reservations_end_at=end),))
    elif after is not None:
        budgets.put((after,))
    if after is None:
        return Freed(is_done=False, next_reset_at=budget.next_reset_at)
    return Freed(admissible_at_budgets(tx, (after,)), next_reset_at=after.next_reset_at)


def _reserve(budgets: Budgets, item: Reserve) -> Reserved | Hard | AlreadyApplied:
    tx, key = budgets.tx, (item.budget_id, item.reservation_id)
    chain = budgets.needed(item.budget_id)
    if tx.get(RESERVATIONS, key) is not None:
        return AlreadyApplied()
    hard = budgets.refused(chain, item.amounts)
    if hard is not None:
        return hard
    until, root_id = tx.now + item.ttl_ms, chain[-1].budget_id
    amounts = {name: amount for name, amount in item.amounts.items() if amount}
    stored = Reservation(
        root_id=root_id, amounts=amounts, until=until, execution_id=item.execution_id
    )
    tx.put(RESERVATIONS, key, stored)
    budgets.put(set_aside(chain, amounts, tx.now))
    budgets.remind(root_id, until)
    return Reserved(until)


def _commit(budgets: Budgets, item: Commit) -> SpendAnswer:
    """A reservation that ended, was cancelled or never was sets nothing aside: what was spent still
    counts."""
    chain = budgets.needed(item.budget_id)
    key = (item.budget_id, item.reservation_id)
    found = budgets.tx.get(RESERVATIONS, key)
    if found is not None and found.state == "committed":
        return AlreadyApplied()
    held = found.amounts if found else {}
    hard = budgets.refused(chain, item.amounts, held)
    if hard is not None:
        return hard
    finished = found or Reservation(root_id=chain[-1].budget_id, amounts={}, until=0)
    spending = _count(budgets, _freed(budgets, chain, held), item.amounts, finished.execution_id)
    _finish(budgets, key, _replace(finished, state="committed"))
    return spending


def _cancel(budgets: Budgets, item: Cancel) -> Spending | AlreadyApplied:
    chain = budgets.needed(item.budget_id)
    key = (item.budget_id, item.reservation_id)
    found = budgets.tx.get(RESERVATIONS, key)
    if found is None or found.state != "open":
        return AlreadyApplied()
    _freed(budgets, chain, found.amounts)
    _finish(budgets, key, _replace(found, state="cancelled"))
    return Spending()


def _freed(budgets: Budgets, chain: Chain, amounts: dict[str, int]) -> Chain:
    if not amounts:
        return chain
    after = free(chain, amounts, budgets.tx.now)
    budgets.put(after)
    return after


def _finish(budgets: Budgets, key: tuple[str, str], finished: Reservation) -> None:
    """Keep the reservation for a day as a mark: its amounts are no longer set aside."""
    until = budgets.tx.now + DEDUP_MS
    budgets.tx.put(RESERVATIONS, key, _replace(finished, amounts={}, until=until))
    budgets.remind(finished.root_id, until)


start_spend = _on_budgets(_spend)
start_release = _on_budgets(_release)
start_reset = _on_budgets(_reset)
start_reserve = _on_budgets(_reserve)
start_commit = _on_budgets(_commit)
start_cancel = _on_budgets(_cancel)
