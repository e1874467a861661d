"""The budgets a batch works on: whole chains, rid of the holds that have ended."""

from collections.abc import Iterable, Sequence
from functools import partial

import msgspec

from flowfabric.backend.reference.limit_tables import BUDGETS, HOLD_ENDS, RESERVATIONS
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.core.limits.budgets import Budget, Chain, ancestor_missing, unhold
from flowfabric.core.limits.gates import MOST_ENDED
from flowfabric.errors import BudgetNotFound, FlowFabricError


class Budgets:
    """A batch has one now, so what ended by then is dropped once per tree, before its first item:
    an item that fails takes back only its own writes."""

    def __init__(self, tx: Transaction, ids: Iterable[str]) -> None:
        self.tx = tx
        self._trimmed: set[str] = set()
        for budget_id in dict.fromkeys(ids):
            try:
                tx.item(partial(self._trim, budget_id))
            except FlowFabricError:
                # The item that needs it meets the same error, and answers it.
                continue

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

    def put(self, levels: Chain) -> None:
        for level in levels:
            self.tx.put(BUDGETS, level.budget_id, level)

    def next_end(self, root_id: str) -> int:
        """When the next hold of a tree ends, as of the last flush; 0 when there is none."""
        rows = self.tx.ordered(HOLD_ENDS, (root_id,), None, None, 1)
        return rows[0][1].until if rows else 0

    def remind(self, root_id: str, until: int) -> None:
        """Have the tree looked at when one of its holds ends."""
        root = self.tx.get(BUDGETS, root_id)
        if root is not None and not 0 < root.holds_end_at <= until:
            self.put((msgspec.structs.replace(root, holds_end_at=until),))

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
        for key, hold in tx.ordered(HOLD_ENDS, (root_id,), None, tx.now, MOST_ENDED):
            tx.put(RESERVATIONS, key, None)
            if hold.state == "open":
                self.put(unhold(self.chain(key[0]), hold.amounts, tx.now))
        self._trimmed.add(root_id)


def read_budgets(tx: Transaction, ids: Sequence[str]) -> list[Chain]:
    """Each budget with its ancestors, leaf first; empty for one that does not exist."""
    budgets = Budgets(tx, ids)
    return [budgets.chain(budget_id) for budget_id in ids]
