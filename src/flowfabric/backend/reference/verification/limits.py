"""Checks of limits: every count is counted once more from the rows it stands for."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from flowfabric.backend.reference.limit_tables import (
    ATTACHED,
    BUDGETS,
    ENTRIES,
    GATES,
    LEDGERS,
    RESERVATIONS,
    SLOTS,
)
from flowfabric.backend.reference.tables import RECORDS, Table
from flowfabric.backend.reference.transaction import Transaction
from flowfabric.backend.reference.verification.records import rows_of
from flowfabric.backend.types import Discrepancy
from flowfabric.core.limits.budgets import Budget
from flowfabric.core.limits.gates import Gate

# Per budget and dimension.
_Sums = defaultdict[str, Counter[str]]


def check_limits(tx: Transaction) -> Iterator[Discrepancy]:
    yield from _check_gates(tx)
    yield from _check_budgets(tx)
    yield from _check_attached(tx)


def _check_gates(tx: Transaction) -> Iterator[Discrepancy]:
    slots, entries = _counted(tx, SLOTS), _counted(tx, ENTRIES)
    for name, gate in rows_of(tx.tables, GATES):
        yield from _check_gate(tx, name, gate)
        found = (gate.slots, gate.entries)
        expected = (slots.pop(name, 0), entries.pop(name, 0))
        if found != expected:
            yield Discrepancy("gate", name, f"{found} slots, entries", str(expected))
    for name in (*slots, *entries):
        yield Discrepancy("gate", name, "slots or entries", "no gate")


def _counted(tx: Transaction, table: Table[tuple[str, str], Any]) -> Counter[str]:
    return Counter(name for (name, _), _ in rows_of(tx.tables, table))


def _check_gate(tx: Transaction, name: str, gate: Gate) -> Iterator[Discrepancy]:
    """Nothing may end behind the end of its gate: it would be dropped while it counts."""
    last = 0
    for _, slot in tx.tables.range(SLOTS, (name,), None, max(0, gate.slots)):
        last = max(last, slot.until)
    if gate.quota is not None:
        for _, entry in tx.tables.range(ENTRIES, (name,), None, max(0, gate.entries)):
            last = max(last, entry.at + gate.quota.window_ms)
    if last > gate.ends_at:
        yield Discrepancy("gate_end", name, str(gate.ends_at), f"at least {last}")


def _check_budgets(tx: Transaction) -> Iterator[Discrepancy]:
    budgets = dict(rows_of(tx.tables, BUDGETS))
    for (budget_id, name), _ in rows_of(tx.tables, RESERVATIONS):
        if budget_id not in budgets:
            yield Discrepancy("reservation", f"{budget_id} {name}", "no owner", "a budget")
    held, ends = _held(tx, budgets)
    spent = _spent(tx, budgets)
    for budget_id, budget in budgets.items():
        if budget.reserved != dict(held[budget_id]):
            found = str(budget.reserved)
            yield Discrepancy("reserved", budget_id, found, str(dict(held[budget_id])))
        for name, amount in spent[budget_id].items():
            if budget.used.get(name, 0) < amount:
                found = str(budget.used.get(name, 0))
                yield Discrepancy("used", f"{budget_id} {name}", found, f"at least {amount}")
        yield from _check_tree(budget, budgets)
        end = ends.get(budget_id, 0)
        if end and not 0 < budget.reservations_end_at <= end:
            found = str(budget.reservations_end_at)
            yield Discrepancy("reservations_end_at", budget_id, found, f"at most {end}")


def _held(tx: Transaction, budgets: dict[str, Budget]) -> tuple[_Sums, dict[str, int]]:
    """What open holds set aside at every level, and per root when the first hold ends."""
    sums: _Sums = defaultdict(Counter)
    ends: dict[str, int] = {}
    for (budget_id, _), hold in rows_of(tx.tables, RESERVATIONS):
        budget = budgets.get(budget_id)
        if budget is None:
            continue
        ends[hold.root_id] = min(ends.get(hold.root_id, hold.until), hold.until)
        if hold.state == "open":
            for level in (budget_id, *budget.ancestors):
                sums[level].update(hold.amounts)
    return sums, ends


def _spent(tx: Transaction, budgets: dict[str, Budget]) -> _Sums:
    """What ledgers say was spent at every level since its last reset."""
    sums: _Sums = defaultdict(Counter)
    for _, ledger in rows_of(tx.tables, LEDGERS):
        for share in ledger.shares:
            level = budgets.get(share.budget_id)
            if level is not None and level.reset_count == share.reset_count:
                sums[share.budget_id].update(share.amounts)
    return sums


def _check_tree(budget: Budget, budgets: dict[str, Budget]) -> Iterator[Discrepancy]:
    if budget.ancestors:
        parent = budgets.get(budget.parent_id)
        found = (budget.parent_id, *parent.ancestors) if parent else ()
        if found != budget.ancestors:
            yield Discrepancy("ancestors", budget.budget_id, str(budget.ancestors), str(found))
    if any(amount < 0 for amount in (*budget.used.values(), *budget.reserved.values())):
        yield Discrepancy("usage", budget.budget_id, "below 0", "0 or more")


def _check_attached(tx: Transaction) -> Iterator[Discrepancy]:
    found = {key for key, _ in rows_of(tx.tables, ATTACHED)}
    expected = {
        (budget_id, execution_id)
        for execution_id, record in rows_of(tx.tables, RECORDS)
        for budget_id in record.budget_ids
    }
    for budget_id, execution_id in found ^ expected:
        is_listed = (budget_id, execution_id) in found
        listed = "listed" if is_listed else "not listed"
        yield Discrepancy("attached", f"{budget_id} {execution_id}", listed, f"not {listed}")
